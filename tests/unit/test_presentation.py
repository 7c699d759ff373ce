"""How tasks are shown: plain values, hidden secrets, harmless text, aligned tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from flask_taskengine.cli.output import listing, moment, span, table
from flask_taskengine.engine.presentation import first_line, plain, printable, redacted


def test_times_are_iso_8601_in_utc() -> None:
    """Whatever zone the driver gave them."""
    assert plain(datetime(2030, 7, 1, 8, 30, tzinfo=timezone(timedelta(hours=2)))) == "2030-07-01T06:30:00Z"
    assert plain(datetime(2030, 7, 1, 8, 30, 0, 5, tzinfo=UTC)) == "2030-07-01T08:30:00.000005Z"
    assert plain(None) is None


@pytest.mark.parametrize("value", [None, 1, "token", [], {}, [{"a": [1, {"b": None}]}]])
def test_what_holds_no_secret_is_shown_as_it_is(value: Any) -> None:
    """Only the values of named fields are hidden."""
    assert redacted(value, ["token"]) == value


def test_secrets_are_hidden_at_any_depth() -> None:
    """In objects, and in lists of objects; also where the secret is itself an object."""
    value = {"token": {"inner": 1}, "list": [{"token": 1, "name": "n"}, [{"token": None}]], "deep": {"token": "x"}}
    hidden = {"token": "***", "list": [{"token": "***", "name": "n"}, [{"token": "***"}]], "deep": {"token": "***"}}
    assert redacted(value, ("token",)) == hidden
    assert value["token"] == {"inner": 1}


def test_text_does_nothing_to_a_terminal() -> None:
    """Control characters and lone surrogates are escaped; lines and umlauts stay."""
    assert printable("Grüße 漢字\n\tx") == "Grüße 漢字\n\tx"
    assert printable("\x1b[2J\x9b\r\ud800\u202e") == r"\x1b[2J\x9b\r\ud800\u202e"
    assert printable("two\nlines", keep="") == r"two\nlines"


def test_the_first_line_is_the_first_that_says_something() -> None:
    """Shortened to the length that was asked for."""
    assert first_line("\n  \n  E: boom  \nmore") == "E: boom"
    assert first_line("") == ""
    assert first_line("x" * 20, 10) == "x" * 9 + "…"


def test_a_table_is_aligned_and_nothing_is_cut() -> None:
    """Numbers stand at the right; no space ends a line; a cell is one line."""
    drawn = table(("ID", "TYPE", "N"), [(7, "a\nb", 1), (12345, "c", 22)], numbers=("ID", "N"))
    assert drawn.splitlines() == ["   ID  TYPE   N", r"    7  a\nb   1", "12345  c     22"]


def test_a_listing_indents_further_lines() -> None:
    """A value of several lines stands beside its name."""
    assert listing([("a", "1"), ("longer", "x\ny"), ("b", "")]).splitlines() == ["a       1", "longer  x", "        y", "b"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0s"), (0.4, "0s"), (59, "59s"), (119, "119s"), (120, "2m"), (7199, "120m"), (7200, "2h"), (172_800, "2d"), (1e8, "1157d")],
)
def test_durations_are_said_in_one_unit(seconds: float, said: str) -> None:
    """The largest of which there are two."""
    assert span(seconds) == said


def test_a_moment_is_local_and_has_an_age() -> None:
    """Past and future."""
    now = datetime(2030, 7, 1, tzinfo=UTC)
    local = f"{(now - timedelta(minutes=5)).astimezone():%Y-%m-%d %H:%M:%S}"
    assert moment(now - timedelta(minutes=5), now) == f"{local} (5m ago)"
    assert moment(now + timedelta(hours=3), now).endswith("(in 3h)")
    assert moment(None, now) == "-"

"""Durations, in the forms that people write and read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_taskengine.domain.durations import LONGEST, seconds, spoken


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (0, 0),
        (5, 5),
        (0.25, 0.25),
        ("5", 5),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("30s", 30),
        ("30 s", 30),
        (" 5m ", 300),
        ("5 min", 300),
        ("1.5h", 5400),
        ("7d", 604_800),
        ("36500d", LONGEST),
    ],
)
def test_every_documented_form(value: Any, expected: float) -> None:
    """A timedelta, a number of seconds and each unit of text."""
    result = seconds(value)
    assert result == pytest.approx(expected)
    assert isinstance(result, float)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        "",
        "s",
        "5x",
        "5S",
        "1h30m",
        "1e3",
        "٣s",
        "inf",
        "nan",
        [5],
        b"5s",
        object(),
        "5 s 5",
        pytest.param("5" * 5000 + "q", id="long text"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_forms(value: Any) -> None:
    """Anything else is refused, and the message lists the forms and stays short."""
    with pytest.raises(ValueError, match='is no duration: give a timedelta, seconds as a number, or a text such as "500ms"') as caught:
        seconds(value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        "-5s",
        timedelta(seconds=-1),
        timedelta.max,
        float("inf"),
        float("nan"),
        10**400,
        pytest.param(10**5000, id="5000 digits"),
        pytest.param("9" * 400 + "d", id="400 digits of days"),
        LONGEST + 1,
    ],
)
def test_what_is_out_of_range_is_refused(value: Any) -> None:
    """Negative, endless and absurdly long durations are refused; nothing overflows."""
    with pytest.raises(ValueError, match="is out of range: give a duration from 0 to 100 years"):
        seconds(value)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 s"),
        (0.5, "0.5 s"),
        (30, "30 s"),
        (60, "1 min"),
        (90, "90 s"),
        (300, "5 min"),
        (7200, "2 h"),
        (604_800, "7 d"),
        (1_234_567.5, "1234567.5 s"),
        (0.1 + 0.2, "0.3 s"),
        (LONGEST, "36500 d"),
    ],
)
def test_a_duration_is_spoken_in_its_largest_whole_unit(number: float, text: str) -> None:
    """Messages write durations as people do."""
    assert spoken(number) == text


@given(st.integers(0, int(LONGEST) * 1000))
def test_what_is_spoken_can_be_read(milliseconds: int) -> None:
    """What a message says of a duration can be pasted as a setting."""
    number = milliseconds / 1000
    assert seconds(spoken(number)) == number

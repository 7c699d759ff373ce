"""``flask taskengine schedules``: what its commands do and answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click
import pytest
from click.testing import Result

from flask_taskengine import FixedDelay
from flask_taskengine.cli import taskengine
from flask_taskengine.cli.schedules import schedules
from tests.support.hosts import MakeApp
from tests.support.schedules import act, database_now, declare_all, schedule_of, set_row, tasks_of
from tests.support.shop import Shop, open_shop

from . import scheduled_host


@pytest.fixture
def shop(make_app: MakeApp, database_url: str) -> Iterator[Shop]:
    """Make a host with schedules, some of them stored."""
    with open_shop(make_app, database_url, TASKENGINE_REDACT=["token"]) as shop:
        scheduled_host._nightly(shop.engine)
        scheduled_host._slow(shop.engine)
        shop.engine.task("bill")(scheduled_host._bill)
        act(shop, "create", "bill:7", FixedDelay("10m"), "bill", {"customer": 7})
        yield shop


def run(shop: Shop, *arguments: str) -> Result:
    """Run a command."""
    return shop.app.test_cli_runner().invoke(taskengine, ["schedules", *arguments])


def answer(shop: Shop, *arguments: str) -> Any:
    """Run a command with --json and return what it answers."""
    result = run(shop, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_list_shows_every_schedule(shop: Shop) -> None:
    """One line for each, with what it does next; also those that no worker has written yet."""
    heading, *rows = run(shop, "list").output.splitlines()
    assert heading.split() == ["NAME", "TYPE", "WHEN", "STATUS", "NEXT", "LAST", "SUCCESS", "RUNS", "FAILED", "SINCE"]
    assert [row.split()[:2] for row in rows] == [["bill:7", "bill"], ["nightly", "nightly"], ["slow", "slow"]]
    assert "10 min after the end" in rows[0]
    assert "30 2 * * * (Europe/Berlin)" in rows[1]
    assert [one["name"] for one in answer(shop, "list")] == ["bill:7", "nightly", "slow"]


def test_an_orphan_is_listed_as_one(shop: Shop) -> None:
    """And removed by command; what stands in the code is not."""
    declare_all(shop)
    shop.engine.schedules.declared.pop("slow")
    shop.engine.registry._processors.pop("slow")
    assert {one["name"]: one["status"] for one in answer(shop, "list")} == {"bill:7": "waiting", "nightly": "waiting", "slow": "orphaned"}
    assert answer(shop, "remove", "slow") == {"name": "slow", "removed": True}
    refused = run(shop, "remove", "nightly")
    assert (refused.exit_code, "stands in the code" in refused.output) == (1, True)
    assert run(shop, "remove", "bill:7").output == "schedule bill:7 is removed\n"
    assert [one["name"] for one in answer(shop, "list")] == ["nightly"]


def test_show_tells_all_and_hides_secrets(shop: Shop) -> None:
    """Times, counts, settings, payload and state; redacted as everywhere."""
    set_row(shop, "bill:7", state='{"token": "t", "page": 3}', runs=5, successes=4)
    shown = answer(shop, "show", "bill:7")
    assert (shown["payload"], shown["state"]) == ({"customer": 7, "token": "***"}, {"token": "***", "page": 3})
    assert (shown["runs"], shown["definition"]["timing"]) == (5, {"kind": "delay", "delay": 600000})
    text = run(shop, "show", "bill:7").output
    assert "bill, stored" in text
    assert "secret" not in text
    assert "geometric" in run(shop, "show", "nightly").output


def test_r19_run_pause_resume_and_reschedule(shop: Shop) -> None:
    """Each acts in a transaction of its own, and says what it has done."""
    made = answer(shop, "run", "nightly")
    assert made["created"]
    assert [task.id for task in tasks_of(shop, "nightly")] == [made["id"]]
    assert "has begun already" in run(shop, "run", "nightly").output
    assert run(shop, "pause", "slow").output.startswith("schedule slow is paused")
    assert schedule_of(shop, "slow").status == "paused"
    assert answer(shop, "resume", "slow")["paused_at"] is None
    moved = answer(shop, "reschedule", "slow", "2030-12-31T08:00+01:00")
    assert moved["next_at"] == "2030-12-31T07:00:00Z"
    run(shop, "reschedule", "slow", "2h")
    assert 7100 < (schedule_of(shop, "slow").next_at - database_now(shop)).total_seconds() <= 7200  # type: ignore[operator]
    answer(shop, "run", "bill:7", "--move-next")
    assert schedule_of(shop, "bill:7").next_at is None
    for wrong in ("soon", "2030-12-31T08:00"):
        assert run(shop, "reschedule", "slow", wrong).exit_code == 2


def test_preview_shows_local_time_and_utc(shop: Shop) -> None:
    """Over the day on which clocks are changed, too."""
    declare_all(shop)
    set_row(shop, "nightly", next_at=datetime.fromisoformat("2027-03-27T01:30:00+00:00"))
    assert run(shop, "preview", "nightly", "-n", "3").output.splitlines() == [
        "Sat 2027-03-27 02:30:00 CET  2027-03-27 01:30:00Z",
        "Sun 2027-03-28 03:00:00 CEST  2027-03-28 01:00:00Z",
        "Mon 2027-03-29 02:30:00 CEST  2027-03-29 00:30:00Z",
    ]
    assert len(answer(shop, "preview", "nightly")) == 20
    assert len(answer(shop, "preview", "bill:7")) == 1


@pytest.mark.parametrize("verb", ["show", "run", "pause", "resume", "preview", "remove"])
def test_an_unknown_name_is_an_error(shop: Shop, verb: str) -> None:
    """With the name that was meant, and exit code 1; with --json as a value."""
    result = run(shop, verb, "nightli")
    assert result.exit_code == 1
    assert "no schedule has the name 'nightli': did you mean 'nightly'?" in result.output
    assert json.loads(run(shop, verb, "nightli", "--json").output)["error"].startswith("no schedule has the name")


def test_every_command_is_explained_with_an_example() -> None:
    """As those on tasks are."""
    for name, command in schedules.commands.items():
        help_text = command.help or ""
        assert len(help_text.splitlines()[0]) < 55, name
        assert f"Example: flask taskengine schedules {name}" in help_text
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, (name, option.name)

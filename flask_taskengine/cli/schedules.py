"""The commands on recurring schedules."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from ..engine.presentation import plain, schedule_fields
from ..engine.scheduled import Schedule
from .command import answer, command, current_host, json_option, transaction
from .enqueueing import when_option
from .output import listing, moment, table

_name_argument = click.argument("name", metavar="NAME")


@click.group()
def schedules() -> None:
    """List, run and pause recurring schedules.

    Example: flask taskengine schedules list
    """


@command("list")
@json_option
def list_(as_json: bool) -> None:
    """List all schedules by name.

    An orphaned one has left the code, or its task type has: it does not run, and can be removed.

    Example: flask taskengine schedules list
    """
    host = current_host()
    with transaction(host) as t:
        found = host.sender.schedules.list()
        now = t.now()
    headers = ("NAME", "TYPE", "WHEN", "STATUS", "NEXT", "LAST SUCCESS", "RUNS", "FAILED SINCE")
    rows = [
        (
            one.name,
            one.type,
            _when(one),
            _status(one),
            moment(one.next_at, now),
            moment(one.last_success_at, now),
            one.runs,
            one.runs_since_success,
        )
        for one in found
    ]
    text = table(headers, rows, numbers=("RUNS", "FAILED SINCE")) if rows else "no schedules"
    answer(as_json, [schedule_fields(one, host.settings.redact) for one in found], text)


@command()
@_name_argument
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a schedule.

    Example: flask taskengine schedules show nightly-report
    """
    host = current_host()
    with transaction(host) as t:
        one = host.sender.schedules.get(name)
        now = t.now()
    answer(as_json, schedule_fields(one, host.settings.redact), _described(one, now, host.settings.redact))


@command()
@_name_argument
@click.option("--move-next", is_flag=True, allow_from_autoenv=False, help="Plan the next regular time from this run; else it stays.")
@json_option
def run(name: str, move_next: bool, as_json: bool) -> None:
    """Run a schedule once, now.

    Also while it is paused. If an occurrence of it waits for a retry, that runs; if one is running, another follows it.

    Example: flask taskengine schedules run nightly-report
    """
    host = current_host()
    with transaction(host):
        made = host.sender.schedules.run_now(name, move_next=move_next)
    begun = f"an occurrence of {name} has begun already: it runs, or another run follows it (task {made.id})"
    answer(as_json, {"id": made.id, "created": made.created}, f"task {made.id} is enqueued" if made.created else begun)


@command()
@_name_argument
@json_option
def pause(name: str, as_json: bool) -> None:
    """Begin no occurrence any more.

    One that waits for a retry is cancelled, one that is running ends by itself.

    Example: flask taskengine schedules pause nightly-report
    """
    _changed("pause", name, as_json, "is paused")


@command()
@_name_argument
@json_option
def resume(name: str, as_json: bool) -> None:
    """Go on with the next regular time.

    What would have run while the schedule was paused is left out.

    Example: flask taskengine schedules resume nightly-report
    """
    _changed("resume", name, as_json, "goes on")


@command()
@_name_argument
@click.argument("when", metavar="TIME|DURATION", callback=when_option)
@json_option
def reschedule(name: str, when: Any, as_json: bool) -> None:
    """Set the next regular time.

    A time in ISO 8601 with a time zone, or a duration from now. The times after it follow from it.

    Example: flask taskengine schedules reschedule nightly-report 2h
    """
    _changed("reschedule", name, as_json, "is moved", when)


@command()
@_name_argument
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="So many.")
@json_option
def preview(name: str, count: int, as_json: bool) -> None:
    """Show the next times of a schedule.

    Each in the schedule's own time zone and in UTC. Where the next time depends on how long a run takes, only the first is known.

    Example: flask taskengine schedules preview nightly-report -n 5
    """
    host = current_host()
    with transaction(host):
        zone = getattr(getattr(host.sender.schedules.get(name).definition, "timing", None), "timezone", "UTC")
        times = host.sender.schedules.preview(name, count)
    lines = [f"{when.astimezone(ZoneInfo(zone)):%a %Y-%m-%d %H:%M:%S %Z}  {when.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z" for when in times]
    answer(as_json, [plain(when) for when in times], "\n".join(lines) or "it does not run any more, or its next time follows from the run")


@command()
@_name_argument
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a schedule that no code declares.

    Those that were created by the API, and those that have left the code.

    Example: flask taskengine schedules remove old-report
    """
    host = current_host()
    with transaction(host):
        host.sender.schedules.remove(name)
    answer(as_json, {"name": name, "removed": True}, f"schedule {name} is removed")


for _command in (list_, show, run, pause, resume, reschedule, preview, remove):
    schedules.add_command(_command)


def _changed(verb: str, name: str, as_json: bool, done: str, *arguments: Any) -> None:
    host = current_host()
    with transaction(host) as t:
        one = getattr(host.sender.schedules, verb)(name, *arguments)
        now = t.now()
    answer(as_json, schedule_fields(one, host.settings.redact), f"schedule {name} {done}; its next time is {moment(one.next_at, now)}")


def _when(one: Schedule) -> str:
    return "unknown" if one.definition is None else str(one.definition.timing)


def _counts(one: Schedule) -> tuple[int, int]:
    return one.runs, one.runs_since_success


def _status(one: Schedule) -> str:
    return f"{one.status}, paused" if one.paused_at is not None and one.status != "paused" else one.status.value


def _described(one: Schedule, now: datetime, redact: Any) -> str:
    fields = schedule_fields(one, redact)
    definition = one.definition
    pairs = [
        ("name", one.name),
        ("type", f"{one.type}, stored" if one.stored else f"{one.type}, of the code"),
        ("when", _when(one)),
        ("status", _status(one)),
        ("next", moment(one.next_at, now)),
        ("runs now", "-" if one.task_id is None else f"task {one.task_id}"),
        ("last", "-" if one.last_task_id is None else f"task {one.last_task_id}, of {moment(one.last_scheduled_at, now)}"),
        ("last end", moment(one.last_ended_at, now)),
        ("last success", moment(one.last_success_at, now)),
        ("runs", f"{one.runs}, {one.successes} with success, {one.runs_since_success} failed since"),
        ("on failure", "-" if definition is None or definition.on_failure is None else json.dumps(fields["definition"]["on_failure"])),
        ("misfire", "-" if definition is None else json.dumps(fields["definition"]["misfire"])),
        ("payload", json.dumps(fields["payload"], indent=2, ensure_ascii=False)),
        ("state", json.dumps(fields["state"], indent=2, ensure_ascii=False)),
    ]
    return listing(pairs)

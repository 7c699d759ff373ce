"""The command that writes a task."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta
from typing import Any

import click

from ..domain.durations import seconds
from .command import answer, command, current_host, json_option, transaction


def _payload(ctx: click.Context, parameter: click.Parameter, given: str | None) -> Any:
    if given is None:
        return None
    text = sys.stdin.read() if given == "-" else given
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"it is no JSON ({error}); a text needs its quotes: '\"text\"'") from None


def _time(ctx: click.Context, parameter: click.Parameter, given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        when = datetime.fromisoformat(given)
    except ValueError:
        raise click.BadParameter("give a time such as 2030-12-31T08:00+01:00") from None
    if when.tzinfo is None:
        raise click.BadParameter(f"it has no time zone: give {when.astimezone().isoformat()}, or another offset")
    return when


def _duration(ctx: click.Context, parameter: click.Parameter, given: str | None) -> timedelta | None:
    try:
        return None if given is None else timedelta(seconds=seconds(given))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def when_option(ctx: click.Context, parameter: click.Parameter, given: str) -> datetime | timedelta | None:
    """Read a duration, or a time with a time zone."""
    try:
        return timedelta(seconds=seconds(given))
    except ValueError:
        return _time(ctx, parameter, given)


@command()
@click.argument("task_type", metavar="TYPE")
@click.argument("payload", metavar="[PAYLOAD_JSON|-]", required=False, callback=_payload)
@click.option("--priority", type=int, default=0, show_default=True, help="Higher runs first.")
@click.option("--key", help="Idempotency key: while a task with this key exists, no second one is written.")
@click.option("--max-attempts", type=int, help="Instead of what the type's retry policy says.")
@click.option("--at", callback=_time, metavar="TIME", help="Not before this time, in ISO 8601 with a time zone.")
@click.option("--after", callback=_duration, metavar="DURATION", help='Not before so long from now, such as "30s" or "2h".')
@json_option
def enqueue(
    task_type: str,
    payload: Any,
    priority: int,
    key: str | None,
    max_attempts: int | None,
    at: datetime | None,
    after: timedelta | None,
    as_json: bool,
) -> None:
    """Write a task.

    Its id is printed, and is that of the existing task where the key is taken. The payload is JSON; "-" reads it from the standard input.

    Example: flask taskengine enqueue email.send '{"to": "a@example.org"}' --priority 5
    """
    if at is not None and after is not None:
        raise click.UsageError("--at and --after exclude each other: give one of them.")
    host = current_host()
    options = {"priority": priority, "idempotency_key": key, "max_attempts": max_attempts}
    with transaction(host):
        if at is not None:
            made = host.sender.enqueue_at(task_type, payload, at, **options)
        elif after is not None:
            made = host.sender.enqueue_after(task_type, payload, after, **options)
        else:
            made = host.sender.enqueue(task_type, payload, **options)
    existed = f"task {made.id} has this key already: nothing was written"
    answer(as_json, {"id": made.id, "created": made.created}, f"task {made.id} is enqueued" if made.created else existed)

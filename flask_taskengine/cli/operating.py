"""Commands for whoever runs the app: pauses, acts on many tasks at once, a live view."""

from __future__ import annotations

import getpass
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from ..domain.errors import InvalidArgument
from ..domain.states import TaskStatus
from ..engine import bulk as bulks
from ..engine import insight
from ..engine.pausing import EVERYTHING
from ..engine.presentation import first_line, task_fields
from ..runtime.host import Host
from ..store import health, nodes, overview
from ..store.search import Filter
from .command import Transaction, answer, command, current_host, json_option, transaction
from .output import span, table

_STATUSES = click.Choice([status.value for status in TaskStatus], case_sensitive=False)
_type_argument = click.argument("task_type", metavar="[TYPE]", default=EVERYTHING)
_CLEAR = "\x1b[H\x1b[2J"
_MINUTE = 60.0


@command()
@_type_argument
@click.option("--reason", help="Why, for whoever looks.")
@json_option
def pause(task_type: str, reason: str | None, as_json: bool) -> None:
    """Let no task of a type begin anywhere.

    Without a type, no task at all. What runs goes on. It holds on all nodes, from the next claim on.

    Example: flask taskengine pause email.send --reason "the mail server is down"
    """
    host = current_host()
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    with transaction(host):
        host.sender.pause(task_type, reason=reason, by=by)
    answer(as_json, {"type": task_type, "paused": True}, f"{_spoken(task_type)} begins no more")


@command()
@_type_argument
@json_option
def resume(task_type: str, as_json: bool) -> None:
    """End a pause, of a type or of everything.

    Pauses of single types outlast that of everything.

    Example: flask taskengine resume email.send
    """
    host = current_host()
    with transaction(host):
        was_paused = host.sender.resume(task_type)
    text = f"{_spoken(task_type)} goes on" if was_paused else f"{_spoken(task_type)} was not paused"
    answer(as_json, {"type": task_type, "paused": False, "was_paused": was_paused}, text)


def _spoken(task_type: str) -> str:
    return "every type" if task_type == EVERYTHING else f"type {task_type}"


@command()
@click.argument("act", type=click.Choice(list(bulks.ALLOWED)))
@click.option("--status", "statuses", type=_STATUSES, multiple=True, help="Only tasks with this status; may be given several times.")
@click.option("--type", "types", multiple=True, help="Only tasks of this type; may be given several times.")
@click.option("--error", help="Only tasks whose last error has this in it.")
@click.option("--all", "every", is_flag=True, allow_from_autoenv=False, help="Needed where nothing else is said of them.")
@click.option("--dry-run", is_flag=True, allow_from_autoenv=False, help="Change nothing: say how many there are, and show some.")
@click.option("--reset-attempts", is_flag=True, allow_from_autoenv=False, help="With retry: count attempts from 0 again.")
@json_option
def bulk(act: bulks.Act, statuses: Sequence[str], every: bool, dry_run: bool, reset_attempts: bool, as_json: bool, **only: Any) -> None:
    """Retry, cancel or delete many tasks.

    Each is changed only if its status allows it: DEAD, FAILED and CANCELLED ones are retried, PENDING and RUNNING ones
    cancelled, all but RUNNING ones deleted. Every batch of tasks is a transaction.

    Example: flask taskengine bulk retry --status DEAD --type email.send --error timeout --dry-run
    """
    host = current_host()
    wanted = Filter(
        statuses=tuple(TaskStatus(status.upper()) for status in statuses), types=tuple(only["types"]), error=only["error"] or None
    )
    if dry_run:
        with transaction(host) as t:
            found = bulks.preview(t.connection, t.dialect, wanted, act)
        sample = [task_fields(task, host.settings.redact) for task in found.sample]
        rows = [(task.id, task.type, task.status, first_line(task.last_error or "", 80)) for task in found.sample]
        number = f"{found.count}" if found.exact else f"at least {found.count}"
        text = f"{number} tasks" + (f", such as\n{table(('ID', 'TYPE', 'STATUS', 'LAST ERROR'), rows, numbers=('ID',))}" if rows else "")
        answer(as_json, {"count": found.count, "exact": found.exact, "sample": sample}, text)
        return
    if wanted.empty and not every:
        raise InvalidArgument("nothing is said of the tasks, so that all are meant: say --all, or which ones")
    changed, below = 0, None
    while True:
        with transaction(host) as t:
            done = bulks.batch(t.connection, t.dialect, wanted, act, below=below, reset_attempts=reset_attempts)
        changed, below = changed + done.changed, done.below
        if below is None:
            break
    past = {"retry": "are PENDING again", "cancel": "are cancelled or asked to end", "delete": "are deleted"}[act]
    answer(as_json, {"changed": changed}, f"{changed} tasks {past}")


@command()
@click.option("--interval", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds between two looks.")
@click.option("--once", is_flag=True, allow_from_autoenv=False, help="Look once, and end.")
def top(interval: float, once: bool) -> None:
    """Watch the queue.

    Shows what waits, runs and has ended in the last minute, by type. Ctrl-C ends it.

    Example: flask taskengine top
    """
    host = current_host()
    while True:
        with transaction(host) as t:
            screen = _screen(host, t)
        click.echo(screen if once else f"{_CLEAR}{screen}")
        if once:
            return
        time.sleep(interval)


def _screen(host: Host, t: Transaction) -> str:
    state = t.dialect.queue_state(t.connection, host.settings.lease)
    ended = overview.lately(t.connection, t.tables, _MINUTE).ended
    alive = nodes.alive(t.connection, t.tables, host.settings.lease)
    rows = []
    for name in sorted({*state.pending, *state.running, *(one.type for one in ended), *(state.paused - {EVERYTHING})}):
        of_type = [one for one in ended if one.type == name]
        counts = Counter(one.status for one in of_type)
        rows.append(
            (
                f"{name} (paused)" if {name, EVERYTHING} & state.paused else name,
                state.pending.get(name, 0),
                span(state.due_for[name]) if name in state.due_for else "-",
                state.running.get(name, 0),
                counts[TaskStatus.SUCCEEDED],
                counts[TaskStatus.DEAD] + counts[TaskStatus.FAILED],
                _seconds(insight.percentiles(one.waited for one in of_type).p95),
                _seconds(insight.percentiles(one.ran for one in of_type).p95),
            )
        )
    headers = ("TYPE", "PENDING", "DUE FOR", "RUNNING", "SUCCEEDED/MIN", "DEAD/MIN", "WAIT P95", "RUN P95")
    slots = sum(node["concurrency"] for node in alive)
    head = f"{t.now().astimezone():%H:%M:%S}  {len(alive)} nodes, {sum(state.running.values())} of {slots} slots in use"
    warnings = health.warnings(health.health_figures(t.connection, t.dialect))
    shown = table(headers, rows, numbers=headers[1:]) if rows else "nothing to do"
    return "\n".join([head, "", shown, *(f"\n! {one}" for one in warnings)])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.0f}ms" if value < 1 else f"{value:.1f}s"

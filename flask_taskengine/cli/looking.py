"""Commands that show tasks and nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from ..domain.errors import TaskNotFound
from ..domain.states import TaskStatus
from ..domain.task import Task
from ..engine.presentation import first_line, plain_fields, task_fields
from ..runtime.host import Host
from ..store import nodes, tasks
from .command import answer, command, current_host, json_option, task_id_argument, transaction
from .output import listing, moment, span, table

_STATUSES = click.Choice([status.value for status in TaskStatus], case_sensitive=False)


@command("list")
@click.option("--status", "statuses", type=_STATUSES, multiple=True, help="Only tasks with this status; may be given several times.")
@click.option("--type", "task_type", help="Only tasks of this type.")
@click.option("--priority", type=int, help="Only tasks of this priority.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="At most so many.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Leave out so many of the newest.")
@json_option
def list_(statuses: Sequence[str], as_json: bool, **only: Any) -> None:
    """List tasks, the newest first.

    Example: flask taskengine list --status DEAD --status FAILED --type email.send
    """
    host = current_host()
    with transaction(host) as t:
        found = tasks.newest(t.connection, t.tables, statuses=[TaskStatus(status.upper()) for status in statuses], **only)
        now = t.now()
    headers = ("ID", "TYPE", "STATUS", "PRIORITY", "ATTEMPTS", "WHEN", "CREATED", "LAST ERROR")
    rows = [(task.id, task.type, task.status, task.priority, task.attempts, *_told_of(task, now)) for task in found]
    text = table(headers, rows, numbers=("ID", "PRIORITY", "ATTEMPTS")) if rows else "no tasks"
    if len(found) == only["limit"]:
        text += f"\nthere may be more: --offset {only['offset'] + only['limit']}"
    answer(as_json, [task_fields(task, host.settings.redact) for task in found], text)


def _told_of(task: Task, now: datetime) -> tuple[str, str, str]:
    return _phase(task, now), moment(task.created_at, now), first_line(task.last_error or "", 60)


def _phase(task: Task, now: datetime) -> str:
    """Say since when, or until when, the task is what it is."""
    if task.finished_at is not None:
        return f"ended {span((now - task.finished_at).total_seconds())} ago"
    if task.status is TaskStatus.RUNNING:
        running = f"runs for {span((now - (task.claimed_at or now)).total_seconds())}"
        return f"{running}, cancel asked" if task.cancel_requested_at else running
    wait = (task.available_at - now).total_seconds()
    return f"due in {span(wait)}" if wait > 0 else f"due for {span(-wait)}"


@command()
@task_id_argument
@json_option
def show(task_id: int, as_json: bool) -> None:
    """Show a task and its failed attempts.

    Example: flask taskengine show 4711
    """
    host = current_host()
    with transaction(host) as t:
        task = tasks.get(t.connection, t.tables, task_id)
        if task is None:
            raise TaskNotFound(task_id)
        attempts = tasks.attempts_of(t.connection, t.tables, task_id)
        now = t.now()
    fields = task_fields(task, host.settings.redact)
    text = "\n\n".join([_described(host, task, fields, now), *(_attempt(attempt, now) for attempt in attempts)])
    answer(as_json, fields | {"failed_attempts": [plain_fields(attempt) for attempt in attempts]}, text)


def _described(host: Host, task: Task, fields: dict[str, Any], now: datetime) -> str:
    pairs = [
        ("id", str(task.id)),
        ("type", task.type),
        ("status", f"{task.status}, {_phase(task, now)}"),
        ("priority", str(task.priority)),
        ("attempts", f"{task.attempts} of {_most_attempts(host, task)}"),
        ("created", moment(task.created_at, now)),
        ("available", moment(task.available_at, now)),
        ("claimed", f"{moment(task.claimed_at, now)} by {task.claimed_by}" if task.claimed_at else "-"),
        ("finished", moment(task.finished_at, now)),
        ("key", task.idempotency_key or "-"),
        ("payload", json.dumps(fields["payload"], indent=2, ensure_ascii=False)),
        ("result", json.dumps(fields["result"], indent=2, ensure_ascii=False)),
        ("last error", task.last_error or "-"),
    ]
    return listing(pairs)


def _most_attempts(host: Host, task: Task) -> int | str:
    processor = host.registry.get(task.type)
    policy = host.settings.retry_policy(task.type, processor.retry if processor else None)
    most = task.max_attempts or policy.max_attempts
    return "any number" if most is None else most


def _attempt(attempt: Mapping[str, Any], now: datetime) -> str:
    pairs = [
        (f"failed attempt {attempt['attempt']}", f"{attempt['error_class']}: {attempt['message']}"),
        ("ended", f"{moment(attempt['finished_at'], now)} on {attempt['node'] or 'an unknown node'}"),
        ("traceback", attempt["traceback"] or "-"),
    ]
    return listing(pairs)


@command()
@json_option
def stats(as_json: bool) -> None:
    """Count tasks, show the live nodes.

    Tasks are counted by type and status. OLDEST DUE FOR says how long the first task of a type has been waiting
    since it was due.

    Example: flask taskengine stats
    """
    host = current_host()
    with transaction(host) as t:
        counts = tasks.counts(t.connection, t.tables)
        waits = t.dialect.pending_types(t.connection)
        alive = nodes.alive(t.connection, t.tables, host.settings.lease)
        now = t.now()
    overdue = {task_type: -wait for task_type, wait in waits.items() if wait <= 0}
    by_type: dict[str, dict[str, int]] = {}
    for task_type, status, number in counts:
        by_type.setdefault(task_type, {})[status] = number
    value = {
        "tasks": by_type,
        "oldest_due_age": overdue,
        "nodes": [plain_fields(node) | {"heartbeat_age": (now - node["heartbeat_at"]).total_seconds()} for node in alive],
    }
    answer(as_json, value, f"{_count_table(by_type, overdue)}\n\n{_node_table(alive, now)}")


def _count_table(by_type: dict[str, dict[str, int]], overdue: dict[str, float]) -> str:
    statuses = [status.value for status in TaskStatus]
    headers = ("TYPE", *statuses, "OLDEST DUE FOR")
    rows = [
        (task_type, *(numbers.get(status, 0) for status in statuses), span(overdue[task_type]) if task_type in overdue else "-")
        for task_type, numbers in by_type.items()
    ]
    return table(headers, rows, numbers=statuses) if rows else "no tasks"


def _node_table(alive: Sequence[Mapping[str, Any]], now: datetime) -> str:
    headers = ("NODE", "LABEL", "STARTED", "HEARTBEAT", "CONCURRENCY", "TYPES")
    rows = [
        (
            node["id"],
            node["label"],
            moment(node["started_at"], now),
            f"{span((now - node['heartbeat_at']).total_seconds())} ago",
            node["concurrency"],
            ", ".join(node["types"]),
        )
        for node in alive
    ]
    return table(headers, rows, numbers=("CONCURRENCY",)) if rows else "no node is alive: start one with `flask taskengine worker`"

"""Statements on single tasks that are the same on every database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from ..domain.outcome import Failure, Outcome
from ..domain.states import ENDED, TaskStatus
from ..domain.task import Claimed, Task
from .clock import db_after, db_now, seconds_since
from .tables import Tables

_KEYS_AT_ONCE = 1000
_COLUMNS = tuple(f.name for f in fields(Task))


def get(connection: sa.Connection, tables: Tables, task_id: int) -> Task | None:
    """Read one task."""
    row = connection.execute(_select(tables).where(tables.task.c.id == task_id)).one_or_none()
    return None if row is None else _task(row)


def ids_of_keys(connection: sa.Connection, tables: Tables, keys: Sequence[str]) -> dict[str, int]:
    """Read the ids of the tasks that have these idempotency keys."""
    c = tables.task.c
    found: dict[str, int] = {}
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        statement = sa.select(c.idempotency_key, c.id).where(c.idempotency_key.in_(keys[start : start + _KEYS_AT_ONCE]))
        found |= {key: task_id for key, task_id in connection.execute(statement)}
    return found


def newest(
    connection: sa.Connection,
    tables: Tables,
    *,
    statuses: Sequence[TaskStatus] = (),
    task_type: str | None = None,
    priority: int | None = None,
    limit: int = 50,
    offset: int = 0,
    below: int | None = None,
) -> list[Task]:
    """Read tasks, newest first; ``below`` continues after the task with that id."""
    c = tables.task.c
    where: list[sa.ColumnElement[bool]] = []
    if statuses:
        where.append(c.status.in_([status.value for status in statuses]))
    if task_type is not None:
        where.append(c.type == task_type)
    if priority is not None:
        where.append(c.priority == priority)
    if below is not None:
        where.append(c.id < below)
    return select(connection, tables, where, limit=limit, offset=offset)


def select(
    connection: sa.Connection, tables: Tables, where: Sequence[sa.ColumnElement[bool]], *, limit: int, offset: int = 0
) -> list[Task]:
    """Read the tasks that meet all conditions, newest first."""
    statement = _select(tables).where(*where).order_by(tables.task.c.id.desc()).limit(limit).offset(offset)
    return [_task(row) for row in connection.execute(statement)]


def counts(connection: sa.Connection, tables: Tables) -> list[tuple[str, TaskStatus, int]]:
    """Count the tasks by type and status."""
    c = tables.task.c
    statement = sa.select(c.type, c.status, sa.func.count()).group_by(c.type, c.status).order_by(c.type, c.status)
    return [(task_type, TaskStatus(status), number) for task_type, status, number in connection.execute(statement)]


def running_by_type(connection: sa.Connection, tables: Tables, types: Sequence[str]) -> dict[str, int]:
    """Count the RUNNING tasks of these types."""
    c = tables.task.c
    statement = (
        sa.select(c.type, sa.func.count())
        .where(c.status == sa.literal_column("'RUNNING'"), c.finished_at.is_(None), c.type.in_(types))
        .group_by(c.type)
    )
    return {task_type: number for task_type, number in connection.execute(statement)}


# --- the end of an attempt --------------------------------------------------------------------------------------------


def finish(connection: sa.Connection, tables: Tables, task_id: int, claims: int, outcome: Outcome) -> bool:
    """Write an outcome, if the attempt still holds the task and the row's cancel request agrees with the outcome."""
    c = tables.task.c
    cancelled = c.cancel_requested_at.is_not(None) if outcome.status is TaskStatus.CANCELLED else c.cancel_requested_at.is_(None)
    statement = (
        sa.update(tables.task)
        .where(c.id == task_id, c.claims == claims, c.status == TaskStatus.RUNNING.value, cancelled)
        .values(_written(tables, outcome))
    )
    return connection.execute(statement).rowcount == 1


def complete_and_delete(connection: sa.Connection, tables: Tables, task_id: int, claims: int) -> bool:
    """Remove a task that has succeeded and its failed attempts, if the attempt still holds it and nobody asked to cancel it."""
    c = tables.task.c
    statement = sa.delete(tables.task).where(
        c.id == task_id, c.claims == claims, c.status == TaskStatus.RUNNING.value, c.cancel_requested_at.is_(None)
    )
    gone = connection.execute(statement).rowcount == 1
    if gone and claims > 1:
        connection.execute(sa.delete(tables.attempt).where(tables.attempt.c.task_id == task_id))
    return gone


def _written(tables: Tables, outcome: Outcome) -> dict[str, Any]:
    written: dict[str, Any] = {"status": outcome.status.value, "updated_at": db_now()}
    if outcome.status in ENDED:
        written["finished_at"] = db_now()
    if outcome.delay is not None:
        written["available_at"] = db_after(sa.bindparam("delay", outcome.delay, sa.Float()))
    if not outcome.counted:
        written["attempts"] = tables.task.c.attempts - 1
    if outcome.failure is not None:
        written["last_error"] = str(outcome.failure)
    if outcome.result is not None:
        written["result"] = outcome.result
    return written


def set_progress(connection: sa.Connection, tables: Tables, task_id: int, claims: int, progress: str) -> None:
    """Keep how far an attempt is, as JSON text; nothing is written where it no longer holds its task."""
    c = tables.task.c
    one = (c.id == task_id, c.claims == claims, c.status == sa.literal_column("'RUNNING'"))
    connection.execute(sa.update(tables.task).where(*one).values(progress=progress))


def hold(connection: sa.Connection, tables: Tables, task_id: int, claims: int) -> bool:
    """Say whether the attempt still holds the task, and keep it so until the transaction ends."""
    c = tables.task.c
    statement = (
        sa.select(sa.literal(1)).where(c.id == task_id, c.claims == claims, c.status == TaskStatus.RUNNING.value).with_for_update(read=True)
    )
    return connection.execute(statement).scalar() is not None


def holding(connection: sa.Connection, tables: Tables, task_id: int) -> tuple[int, TaskStatus, bool] | None:
    """Read who may finish a task: its claims, its status and whether a cancel was asked for."""
    c = tables.task.c
    row = connection.execute(sa.select(c.claims, c.status, c.cancel_requested_at).where(c.id == task_id)).one_or_none()
    return None if row is None else (row[0], TaskStatus(row[1]), row[2] is not None)


def record_attempt(connection: sa.Connection, tables: Tables, task: Claimed, node: str, failure: Failure) -> None:
    """Keep a failed attempt; recording the same one twice changes nothing."""
    a = tables.attempt.c
    seen = sa.select(a.task_id).where(a.task_id == task.id, a.claims == task.claims).exists()
    row = sa.select(
        sa.literal(task.id, a.task_id.type),
        sa.literal(task.claims, a.claims.type),
        sa.literal(task.attempts),
        sa.literal(node, a.node.type),
        sa.literal(task.claimed_at, a.started_at.type),
        sa.literal(failure.error_class[:255], a.error_class.type),
        sa.literal(failure.message, a.message.type),
        sa.literal(failure.traceback, a.traceback.type),
    ).where(~seen)
    names = ["task_id", "claims", "attempt", "node", "started_at", "error_class", "message", "traceback"]
    connection.execute(sa.insert(tables.attempt).from_select(names, row))


def attempts_of(connection: sa.Connection, tables: Tables, task_id: int) -> list[Mapping[str, Any]]:
    """Read the failed attempts of a task, oldest first."""
    statement = sa.select(tables.attempt).where(tables.attempt.c.task_id == task_id).order_by(tables.attempt.c.claims)
    return [dict(row._mapping) for row in connection.execute(statement)]


# --- by a person or the code ------------------------------------------------------------------------------------------


def cancel_pending(connection: sa.Connection, tables: Tables, task_id: int) -> bool:
    """End a task that waits."""
    c = tables.task.c
    statement = (
        sa.update(tables.task)
        .where(c.id == task_id, c.status == TaskStatus.PENDING.value)
        .values(status=TaskStatus.CANCELLED.value, cancel_requested_at=db_now(), finished_at=db_now(), updated_at=db_now())
    )
    return connection.execute(statement).rowcount == 1


def request_cancel(connection: sa.Connection, tables: Tables, task_id: int) -> bool:
    """Ask for the end of a task that runs; asking again keeps the first time."""
    c = tables.task.c
    statement = (
        sa.update(tables.task)
        .where(c.id == task_id, c.status == TaskStatus.RUNNING.value)
        .values(cancel_requested_at=sa.func.coalesce(c.cancel_requested_at, db_now()), updated_at=db_now())
    )
    return connection.execute(statement).rowcount == 1


def requeue(connection: sa.Connection, tables: Tables, where: sa.ColumnElement[bool], *, reset_attempts: bool) -> int:
    """Put ended tasks back to PENDING, due now; an exhausted one gets one more attempt. Returns how many."""
    c = tables.task.c
    one_more = sa.case((c.max_attempts <= c.attempts, c.attempts + 1), else_=c.max_attempts)
    attempts: dict[str, Any] = {"attempts": 0} if reset_attempts else {"max_attempts": one_more}
    statement = (
        sa.update(tables.task)
        .where(where)
        .values(
            status=TaskStatus.PENDING.value,
            available_at=db_now(),
            updated_at=db_now(),
            finished_at=None,
            cancel_requested_at=None,
            **attempts,
        )
    )
    return connection.execute(statement).rowcount


def delete(connection: sa.Connection, tables: Tables, task_id: int) -> bool:
    """Remove a task that does not run, with its failed attempts."""
    c = tables.task.c
    gone = connection.execute(sa.delete(tables.task).where(c.id == task_id, c.status != TaskStatus.RUNNING.value)).rowcount == 1
    if gone:
        connection.execute(sa.delete(tables.attempt).where(tables.attempt.c.task_id == task_id))
    return gone


# --- what a node looks for --------------------------------------------------------------------------------------------


def running_on(connection: sa.Connection, tables: Tables, node: str) -> list[tuple[int, int, bool]]:
    """Read (id, claims, whether a cancel was asked for) of the tasks that a node runs."""
    c = tables.task.c
    statement = sa.select(c.id, c.claims, c.cancel_requested_at.is_not(None)).where(_runs_on(tables, node))
    return [(row[0], row[1], bool(row[2])) for row in connection.execute(statement)]


def cancels_asked_for(connection: sa.Connection, tables: Tables, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Read (id, claims) of those of these tasks that run and are asked to end."""
    c = tables.task.c
    statement = sa.select(c.id, c.claims).where(c.id.in_(ids), c.status == TaskStatus.RUNNING.value, c.cancel_requested_at.is_not(None))
    return [(row[0], row[1]) for row in connection.execute(statement)]


def claimed(connection: sa.Connection, tables: Tables, task_id: int, claims: int) -> Claimed | None:
    """Read a RUNNING task as its claim handed it out; None where that claim does not hold any more."""
    c = tables.task.c
    row = connection.execute(
        _select_claimed(tables).where(c.id == task_id, c.claims == claims, c.status == TaskStatus.RUNNING.value)
    ).one_or_none()
    return None if row is None else Claimed(*row)


def lock_running_on(connection: sa.Connection, tables: Tables, node: str, most: int) -> list[tuple[Claimed, float]]:
    """Lock up to ``most`` tasks that a node runs, but none that another transaction has locked.

    Returns:
        Each with the seconds since its claim. Without its payload: one that can not be read must not keep a task from ending.
    """
    c = tables.task.c
    columns = [sa.null() if f.name == "payload" else c[f.name] for f in fields(Claimed)]
    statement = (
        sa.select(*columns, seconds_since(c.claimed_at))
        .where(_runs_on(tables, node))
        .order_by(c.id)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    return [(Claimed(*row[:-1]), float(row[-1])) for row in connection.execute(statement)]


def _runs_on(tables: Tables, node: str) -> sa.ColumnElement[bool]:
    c = tables.task.c
    # The status as a literal, so that PostgreSQL sees which part of the index is meant.
    return sa.and_(c.status == sa.literal_column("'RUNNING'"), c.finished_at.is_(None), c.claimed_by == node)


def _select_claimed(tables: Tables) -> sa.Select[Any]:
    return sa.select(*(tables.task.c[f.name] for f in fields(Claimed)))


def orphaned_nodes(connection: sa.Connection, tables: Tables, lease: float) -> list[str]:
    """Read the names under which tasks run though their node is silent for longer than the lease, expired, or has no row."""
    c, n = tables.task.c, tables.node.c
    alive = sa.select(n.id).where(n.id == c.claimed_by, n.expired_at.is_(None), seconds_since(n.heartbeat_at) <= lease).exists()
    statement = (
        sa.select(c.claimed_by)
        .where(c.status == sa.literal_column("'RUNNING'"), c.finished_at.is_(None), c.claimed_by.is_not(None), ~alive)
        .distinct()
    )
    return list(connection.execute(statement).scalars())


def _select(tables: Tables) -> sa.Select[Any]:
    return sa.select(*(tables.task.c[name] for name in _COLUMNS))


def _task(row: sa.Row[Any]) -> Task:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["status"] = TaskStatus(values["status"])
    return Task(**values)

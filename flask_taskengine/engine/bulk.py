"""The same act on all tasks that a filter finds, in batches that each are a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from ..domain.states import DELETABLE, LIVE, RETRYABLE, TaskStatus
from ..domain.task import Task
from ..store import search, tasks
from ..store.dialects.base import Dialect
from ..store.search import Filter

Act = Literal["retry", "cancel", "delete"]

BATCH = 500
"""Tasks per transaction: no lock is held for long."""
COUNTED = 100_000
"""A dry run counts up to this number."""
SAMPLE = 10

ALLOWED = {"retry": RETRYABLE, "cancel": LIVE, "delete": DELETABLE}


@dataclass(frozen=True, slots=True)
class Preview:
    """What an act would change."""

    count: int
    exact: bool
    """False: there are at least so many."""
    sample: list[Task]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction has changed."""

    changed: int
    below: int | None
    """Where the next batch goes on; None where there is no more."""


def narrowed(only: Filter, act: Act) -> Filter | None:
    """Return the filter for the tasks that the act is allowed for; None where there can be none."""
    allowed = ALLOWED[act]
    statuses = tuple(status for status in (only.statuses or tuple(TaskStatus)) if status in allowed)
    if not statuses:
        return None
    return Filter(**{name: getattr(only, name) for name in Filter.__dataclass_fields__ if name != "statuses"}, statuses=statuses)


def preview(connection: sa.Connection, dialect: Dialect, only: Filter, act: Act) -> Preview:
    """Say what an act would change; reads only."""
    chosen = narrowed(only, act)
    if chosen is None:
        return Preview(0, exact=True, sample=[])
    number = search.count(connection, dialect, chosen, COUNTED)
    sample = search.page(connection, dialect, chosen, limit=SAMPLE).items if number else []
    return Preview(number, exact=number < COUNTED, sample=sample)


def batch(
    connection: sa.Connection,
    dialect: Dialect,
    only: Filter,
    act: Act,
    *,
    below: int | None,
    most: int = BATCH,
    reset_attempts: bool = False,
) -> Batch:
    """Do it to the next ``most`` tasks, newest first, in the caller's transaction. Never commits.

    A task whose status changes in between is judged by the one that it has then.
    """
    chosen = narrowed(only, act)
    found = search.ids(connection, dialect, chosen, below=below, most=most) if chosen is not None else []
    changed = act_on(connection, dialect, found, act, reset_attempts=reset_attempts) if found else 0
    return Batch(changed, found[-1] if len(found) == most else None)


def act_on(connection: sa.Connection, dialect: Dialect, ids: Sequence[int], act: Act, *, reset_attempts: bool = False) -> int:
    """Do it to those of these tasks that it is allowed for, in the caller's transaction; return how many. Never commits."""
    c = dialect.tables.task.c
    # In the order of the ids, so that two such statements can not deadlock.
    ids = sorted(ids)
    those = sa.and_(c.id.in_(ids), c.status.in_([status.value for status in ALLOWED[act]]))
    match act:
        case "retry":
            return tasks.requeue(connection, dialect.tables, those, reset_attempts=reset_attempts)
        case "cancel":
            changed = [task_id for task_id in ids if tasks.cancel_pending(connection, dialect.tables, task_id)]
            asked = [i for i in ids if i not in changed and tasks.request_cancel(connection, dialect.tables, i)]
            if asked:
                dialect.wake(connection)
            return len(changed) + len(asked)
        case "delete":
            return sum(tasks.delete(connection, dialect.tables, task_id) for task_id in ids)

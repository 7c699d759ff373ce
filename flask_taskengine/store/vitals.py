"""How many tasks there are, and what a database knows of its own health."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from ..domain.states import TaskStatus
from .tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestTransaction:
    """The session that keeps the most dead rows from being removed."""

    age: float | None
    """Seconds; ``None`` where it is a replica that holds them."""
    pid: int | None
    """``None`` where it is no session: a prepared transaction or a replication slot."""
    holder: str
    """The session's application name, or what it is."""
    user: str
    state: str
    """``active``, ``idle in transaction`` and the like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What a database knows of its own health; ``None`` where it has no such thing."""

    dead_rows: int | None = None
    """Rows of the task table that are dead and not removed yet."""
    oldest_transaction: OldestTransaction | None = None
    sees_all: bool = True
    """Whether this role may see what the sessions of other roles do."""
    notify_queue_usage: float | None = None
    """From 0 to 1; at 1 no task can be enqueued."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How many tasks have each status; every status is there, also with 0."""

    tasks: Mapping[TaskStatus, int]
    estimated: frozenset[TaskStatus] = frozenset()
    """Those that were not counted to the end."""


def counted_depth(connection: sa.Connection, tables: Tables) -> Depth:
    """Count every task."""
    c = tables.task.c
    counts = {status: number for status, number in connection.execute(sa.select(c.status, sa.func.count()).group_by(c.status))}
    return Depth({status: counts.get(status.value, 0) for status in TaskStatus})

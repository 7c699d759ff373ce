"""Figures that say how the queue and its database are, and which of them are worth a word. Cheap enough for once a minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from ..domain.durations import roughly
from .dialects.base import Dialect
from .vitals import Depth, OldestTransaction, Vitals

LONG_TRANSACTION = 300.0
"""Seconds for which a transaction may be open before its dead rows are worth a word."""
MANY_DEAD = 100_000
"""Rows of the task table that are dead and not removed."""
FULL_QUEUE = 0.5
"""Share of the notification queue that may be in use."""
LONG_DUE = 300.0
"""Seconds for which a task may be due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFigures:
    """How the queue and its database are."""

    depth: Depth
    due_for: Mapping[str, float]
    """For each type with due tasks, the seconds since the first of them was due; paused types are left out."""
    vitals: Vitals

    @property
    def oldest_due(self) -> float:
        """Seconds for which the first of all due tasks has been waiting; 0 where none is due."""
        return max(self.due_for.values(), default=0.0)


def health_figures(connection: sa.Connection, dialect: Dialect) -> HealthFigures:
    """Read the figures, by few bounded statements; in the caller's transaction, never commits."""
    p = dialect.tables.type.c
    paused = set(connection.execute(sa.select(p.type).where(p.paused_at.is_not(None))).scalars())
    waits = {} if "*" in paused else dialect.pending_types(connection)
    due_for = {task_type: -wait for task_type, wait in waits.items() if wait <= 0 and task_type not in paused}
    return HealthFigures(depth=dialect.depth(connection), due_for=due_for, vitals=dialect.vitals(connection))


def warnings(figures: HealthFigures) -> list[str]:
    """Return what is worth a word, one sentence each: the cause, a colon and the remedy."""
    return [*vital_warnings(figures.vitals), *_overdue(figures)]


def vital_warnings(vitals: Vitals) -> list[str]:
    """Return what a database's own figures say that is worth a word."""
    found = []
    oldest, dead = vitals.oldest_transaction, vitals.dead_rows or 0
    if oldest is not None and dead >= MANY_DEAD and (oldest.age is None or oldest.age >= LONG_TRANSACTION):
        found.append(f"{dead:,} dead rows of the task table can not be removed, which slows down claims: {blamed(oldest)}")
    elif dead >= 10 * MANY_DEAD and not vitals.sees_all:
        remedy = "GRANT pg_read_all_stats to the app's role to see which session holds a transaction open"
        found.append(f"{dead:,} rows of the task table are dead, which slows down claims: {remedy}")
    usage = vitals.notify_queue_usage or 0.0
    if usage >= FULL_QUEUE:
        remedy = "end the session that has sent LISTEN and then left a transaction open; once the queue is full nothing can be enqueued"
        found.append(f"the queue of notifications is {usage:.0%} full: {remedy}")
    return found


def blamed(oldest: OldestTransaction) -> str:
    """Say who keeps dead rows, and what to do about it."""
    if oldest.pid is None:
        return f"end the {oldest.holder}, which holds them"
    who = f"the session {oldest.pid} ({oldest.holder or 'without a name'}, user {oldest.user or 'unknown'})"
    if oldest.age is None:
        return f"{who} holds them; end it, or what it replicates to"
    return f"{who} has had a transaction open for {roughly(oldest.age)} and is {oldest.state or 'at work'}; let it commit or end it"


def _overdue(figures: HealthFigures) -> list[str]:
    late = sorted(task_type for task_type, seconds in figures.due_for.items() if seconds >= LONG_DUE)
    if not late:
        return []
    remedy = "start more workers, or ask `flask taskengine why` about one of them"
    return [f"tasks are due for up to {roughly(figures.oldest_due)}, of type {', '.join(late)}: {remedy}"]

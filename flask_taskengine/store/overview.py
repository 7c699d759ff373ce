"""What happened lately: how many tasks ended, how long they took, what failed. Bounded, whatever stands in the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from ..domain.states import ENDED, TaskStatus
from . import nodes
from .clock import db_after
from .tables import Tables

MOST_PER_STATUS = 5_000
"""Ended tasks of one status that are looked at; the newest."""
MOST_DEAD = 5_000
"""Dead tasks that are put into groups; the newest."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One task that has ended."""

    id: int
    type: str
    status: TaskStatus
    finished_at: datetime
    waited: float | None
    """Seconds from due to the claim."""
    ran: float | None
    """Seconds of the last attempt."""


@dataclass(frozen=True, slots=True)
class Lately:
    """The tasks that ended in some time up to now, newest first."""

    ended: list[Ended]
    cut: frozenset[TaskStatus]
    """Statuses of which more have ended than are here."""
    now: datetime

    def within(self, seconds: float) -> Lately:
        """Return those of a shorter time."""
        since = self.now - timedelta(seconds=seconds)
        ended = [one for one in self.ended if one.finished_at >= since]
        # One that is cut has no older tasks here than those which are shown.
        older = {one.status for one in self.ended if one.finished_at < since}
        return Lately(ended, self.cut - older, self.now)


def lately(connection: sa.Connection, tables: Tables, seconds: float, statuses: Sequence[TaskStatus] = tuple(sorted(ENDED))) -> Lately:
    """Read the tasks that ended within so many seconds; in the caller's transaction."""
    c = tables.task.c
    now = nodes.now(connection)
    found: list[Ended] = []
    cut = set()
    for status in statuses:
        statement = (
            sa.select(c.id, c.type, c.finished_at, c.claimed_at, c.available_at)
            .where(c.status == sa.literal_column(f"'{status.value}'"), c.finished_at.is_not(None), c.finished_at >= db_after(-seconds))
            .order_by(c.finished_at.desc(), c.id.desc())
            .limit(MOST_PER_STATUS)
        )
        rows = connection.execute(statement).all()
        if len(rows) == MOST_PER_STATUS:
            cut.add(status)
        for task_id, task_type, finished_at, claimed_at, available_at in rows:
            waited = None if claimed_at is None else max(0.0, (claimed_at - available_at).total_seconds())
            ran = None if claimed_at is None else max(0.0, (finished_at - claimed_at).total_seconds())
            found.append(Ended(task_id, task_type, status, finished_at, waited, ran))
    found.sort(key=lambda one: one.finished_at, reverse=True)
    return Lately(found, frozenset(cut), now)


def dead(connection: sa.Connection, tables: Tables) -> list[tuple[int, str, TaskStatus, str, datetime]]:
    """Read the newest DEAD and FAILED tasks: id, type, status, last error, end."""
    c = tables.task.c
    found = []
    for status in (TaskStatus.DEAD, TaskStatus.FAILED):
        statement = (
            sa.select(c.id, c.type, sa.func.coalesce(c.last_error, ""), c.finished_at)
            .where(c.status == sa.literal_column(f"'{status.value}'"), c.finished_at.is_not(None))
            .order_by(c.finished_at.desc(), c.id.desc())
            .limit(MOST_DEAD)
        )
        found += [(task_id, task_type, status, error, at) for task_id, task_type, error, at in connection.execute(statement)]
    return found

"""What a schedule's time means: exactly one task per occurrence, and no occurrence before the last one has ended."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ..domain.errors import InvalidArgument
from ..domain.occurrence import Occurrence
from ..domain.schedule import Plan, plan
from ..domain.task import Enqueued, NewTask
from ..store import schedules
from ..store.dialects.base import Dialect
from ..store.schedules import CODE, ScheduleRow
from .definition import Definition, read_definition
from .enqueue import enqueue_many

_logger = logging.getLogger("flask_taskengine")


class Raced(Exception):
    """Another node has moved a schedule on in between: the transaction is to be rolled back, nothing is lost."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What a due schedule has done."""

    row: ScheduleRow
    plan: Plan
    enqueued: Enqueued | None
    """``None`` where all that were due are skipped, or have been run before."""
    policy: str
    """The misfire policy."""


@dataclass(frozen=True, slots=True)
class _Due:
    row: ScheduleRow
    now: datetime
    definition: Definition
    plan: Plan


def begin_due(
    connection: sa.Connection, dialect: Dialect, served: sa.ColumnElement[bool], most: int, unreadable: set[str] | None = None
) -> list[Begun]:
    """Enqueue the due occurrences of up to ``most`` schedules and move these on, in the caller's transaction. Never commits.

    A schedule is moved on by whoever has locked its row, and only if it still stands where it was read; beside that, the
    occurrence's idempotency key admits one task. None is due while an occurrence of it has not ended.

    Args:
        unreadable: gets the names of schedules that a newer version has written.

    Raises:
        Raced: another node did the same in between.
    """
    rows = schedules.lock_due(connection, dialect.tables, served, most)
    due = [found for row, now in rows if (found := _planned(row, now)) is not None]
    if unreadable is not None:
        unreadable.update({row.name for row, _ in rows} - {one.row.name for one in due})
    running = [(one, one.plan.run) for one in due if one.plan.run is not None]
    news = [new_task(one.row, one.definition, Occurrence(one.row.name, run)) for one, run in running]
    made = iter(enqueue_many(connection, dialect, news)) if news else iter(())
    return [_moved_on(connection, dialect, one, next(made) if one.plan.run is not None else None) for one in due]


def _planned(row: ScheduleRow, now: datetime) -> _Due | None:
    assert row.next_at is not None
    try:
        definition = read_definition(row.definition)
    except InvalidArgument as error:
        _logger.warning("schedule %r does not run: %s", row.name, error)
        return None
    return _Due(row, now, definition, plan(definition.timing, definition.misfire, row.next_at, now))


def _moved_on(connection: sa.Connection, dialect: Dialect, due: _Due, made: Enqueued | None) -> Begun:
    row, tables, next_at = due.row, dialect.tables, due.plan.next_at
    task_id = made.id if made is not None and _may_begin(connection, dialect, made) else None
    if task_id is None:
        # Skipped, or run before: the schedule was set back to a time that it has had.
        if made is not None and next_at is None:
            next_at = due.definition.timing.after(due.now)
        moved = schedules.advance(connection, tables, row, next_at=next_at)
    else:
        moved = schedules.advance(
            connection, tables, row, next_at=next_at, task_id=task_id, last_task_id=task_id, last_scheduled_at=due.plan.run
        )
    if not moved:
        raise Raced
    return Begun(row, due.plan, None if task_id is None else made, due.definition.misfire.policy.value)


def _may_begin(connection: sa.Connection, dialect: Dialect, made: Enqueued) -> bool:
    return made.created or schedules.live_task(connection, dialect.tables, made.id) is not None


def new_task(row: ScheduleRow, definition: Definition, occurrence: Occurrence) -> NewTask:
    """Return the task of an occurrence."""
    return NewTask(
        type=row.type,
        payload=None if row.payload is None else json.dumps(row.payload),
        priority=definition.priority,
        idempotency_key=occurrence.key,
        max_attempts=most_attempts(row, definition),
        available_at=occurrence.scheduled_at,
    )


def most_attempts(row: ScheduleRow, definition: Definition) -> int | None:
    """Return how many attempts an occurrence has; ``None`` leaves it to the policy of the task's type, or sets no bound."""
    if definition.on_failure is None:
        return 1 if row.source == CODE else None
    return definition.on_failure.max_attempts


# --- occurrences that ended by themselves -------------------------------------------------------------------------------


def free(connection: sa.Connection, dialect: Dialect, name: str) -> ScheduleRow | None:
    """Let a schedule go on whose occurrence was cancelled, deleted or archived beside it. Never commits.

    Returns:
        The schedule, locked and as it now is; ``None`` where there is none.
    """
    locked = schedules.lock(connection, dialect.tables, name)
    if locked is None:
        return None
    row, now = locked
    if row.task_id is None or schedules.live_task(connection, dialect.tables, row.task_id) is not None:
        return row
    ended = schedules.ended_at(connection, dialect.tables, row.task_id) or now
    definition = read_definition(row.definition)
    next_at = definition.timing.after(ended) if row.next_at is None else row.next_at
    requested = begin_requested(connection, dialect, row, definition, now)
    schedules.write(connection, dialect.tables, name, next_at=next_at, **requested)
    return schedules.get(connection, dialect.tables, name)


def begin_requested(
    connection: sa.Connection, dialect: Dialect, row: ScheduleRow, definition: Definition, now: datetime
) -> dict[str, int | datetime | None]:
    """Enqueue the run that was asked for while another ran, if any; return the columns that follow. Never commits."""
    if row.requested_at is None:
        return {"task_id": None}
    made = enqueue_many(connection, dialect, [new_task(row, definition, Occurrence(row.name, now, by_hand=True))])[0]
    return {"task_id": made.id, "last_task_id": made.id, "last_scheduled_at": now, "requested_at": None}

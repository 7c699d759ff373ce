"""What a person or the code does to a schedule, inside the caller's transaction. Nothing here commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from ..domain.errors import InvalidArgument, ScheduleConflict, ScheduleNotFound
from ..domain.occurrence import Occurrence
from ..domain.schedule import FixedRate, Timing, later, replan
from ..domain.states import TaskStatus
from ..domain.task import Enqueued
from ..store import nodes, schedules, tasks
from ..store.dialects.base import Dialect
from ..store.schedules import CODE, DATABASE, ScheduleRow
from . import recurring
from .declare import Declared, declare
from .definition import Definition, read_definition
from .enqueue import enqueue_many


class ScheduleStatus(StrEnum):
    """What a schedule is doing."""

    WAITING = "waiting"
    """For its next time."""
    RUNNING = "running"
    """An occurrence has begun and not ended; it may wait for a retry."""
    PAUSED = "paused"
    ORPHANED = "orphaned"
    """No code knows it: it does not run, and can be removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as it stands in the database; times are aware and in UTC, by the database's clock."""

    name: str
    type: str
    """The task type of its occurrences; for a schedule of the code its own name."""
    stored: bool
    """Whether it was created by the API; else it stands in the code."""
    definition: Definition | None = field(hash=False)
    """``None`` where a newer version has written it, which this one can not read."""
    status: ScheduleStatus
    payload: Any = field(repr=False, hash=False)
    next_at: datetime | None
    """The next regular time; ``None`` while it follows from the end of the run."""
    task_id: int | None
    """The occurrence that has begun and not ended."""
    last_task_id: int | None
    paused_at: datetime | None
    state: Any = field(repr=False, hash=False)
    runs: int
    successes: int
    runs_since_success: int
    last_scheduled_at: datetime | None
    last_started_at: datetime | None
    last_ended_at: datetime | None
    last_success_at: datetime | None


@dataclass(frozen=True, slots=True)
class Desk:
    """Where the verbs work: a transaction, and what the app's code knows."""

    connection: sa.Connection
    dialect: Dialect
    declared: Mapping[str, Declared]
    types: Collection[str]
    lease: float


# --- look -------------------------------------------------------------------------------------------------------------


def listed(desk: Desk) -> list[Schedule]:
    """Return all schedules by name, also those of the code that no worker has written yet."""
    rows = {row.name: row for row in schedules.listed(desk.connection, desk.dialect.tables)}
    for name in desk.declared.keys() - rows.keys():
        rows[name] = _unwritten(desk, name)
    known = _known_types(desk)
    return [_schedule(desk, rows[name], known) for name in sorted(rows)]


def get(desk: Desk, name: str) -> Schedule:
    """Return one schedule.

    Raises:
        ScheduleNotFound: there is none.
    """
    row = schedules.get(desk.connection, desk.dialect.tables, name)
    if row is None and name in desk.declared:
        row = _unwritten(desk, name)
    if row is None:
        raise _not_found(desk, name)
    return _schedule(desk, row, _known_types(desk))


def preview(desk: Desk, name: str, count: int) -> list[datetime]:
    """Return the next regular times; for a schedule whose next time follows from the end of the run the next one alone.

    Raises:
        ScheduleNotFound: there is none.
    """
    schedule = get(desk, name)
    if schedule.definition is None:
        raise ScheduleConflict(name, "can not be read by this version, a newer one has written it")
    moment, timing = schedule.next_at, schedule.definition.timing
    times: list[datetime] = []
    while moment is not None and len(times) < count:
        times.append(moment)
        moment = timing.after(moment) if timing.planned else None
    return times


# --- create, change, remove -----------------------------------------------------------------------------------------------


def create(desk: Desk, name: str, task_type: str, payload: str | None, definition: Definition) -> Schedule:
    """Store a schedule for a task type.

    Raises:
        ScheduleConflict: the name is taken.
    """
    values = {
        "name": name,
        "source": DATABASE,
        "type": task_type,
        "payload": payload,
        "definition": definition.text(),
        "next_at": definition.timing.after(schedules.now(desk.connection)),
    }
    if name in desk.declared or not desk.dialect.insert_absent(desk.connection, desk.dialect.tables.schedule, values):
        raise ScheduleConflict(name, "exists already: change it, or give another name")
    desk.dialect.wake(desk.connection)
    return get(desk, name)


def change(desk: Desk, name: str, definition: Definition, payload: Mapping[str, str | None]) -> Schedule:
    """Give a stored schedule another definition and, where there is one under the key ``payload``, another payload.

    The next time is planned anew if the timing is another one.

    Raises:
        ScheduleNotFound: there is none.
        ScheduleConflict: it stands in the code.
    """
    row, now = _locked(desk, name)
    if row.source == CODE:
        raise ScheduleConflict(name, "stands in the code: change it there; here it can be paused, rescheduled and run")
    values: dict[str, Any] = {"definition": definition.text(), **payload}
    if definition.form()["timing"] != row.definition["timing"]:
        values["next_at"] = None
        if row.task_id is None or definition.timing.planned:
            values["next_at"] = replan(definition.timing, now, began=row.last_scheduled_at, ended=row.last_ended_at)
    return _written(desk, name, **values)


def remove(desk: Desk, name: str) -> None:
    """Remove a schedule that no code declares; an occurrence that waits is cancelled, one that runs ends by itself.

    Raises:
        ScheduleNotFound: there is none.
        ScheduleConflict: it stands in the code of this app or of a live node.
    """
    row, _ = _locked(desk, name)
    if row.source == CODE and name in desk.declared:
        raise ScheduleConflict(name, "stands in the code: remove it there, or pause it")
    if row.source == CODE and row.type in _known_types(desk):
        raise ScheduleConflict(name, "stands in the code of a node that runs: stop the workers with that code first, or pause it")
    _cancel_waiting(desk, row)
    schedules.delete(desk.connection, desk.dialect.tables, name)


# --- control ------------------------------------------------------------------------------------------------------------


def run_now(desk: Desk, name: str, *, move_next: bool) -> Enqueued:
    """Run a schedule once, also while it is paused.

    Where an occurrence waits for its retry, that runs now; where one runs, another follows it.

    Args:
        move_next: plan the next regular time from this run; else it stays.

    Returns:
        The task; ``created`` is false where it is that of the occurrence which has begun already.

    Raises:
        ScheduleNotFound: there is none.
    """
    if get(desk, name).status is ScheduleStatus.ORPHANED:
        raise ScheduleConflict(name, "no code knows it: nothing would run; start a worker whose app does, or remove it")
    _locked(desk, name)
    row = recurring.free(desk.connection, desk.dialect, name)
    assert row is not None
    now = schedules.now(desk.connection)
    definition = read_definition(row.definition)
    moved = {"next_at": definition.timing.after(now) if definition.timing.planned else None} if move_next else {}
    if row.task_id is None:
        occurrence = Occurrence(name, now, by_hand=not move_next)
        made = enqueue_many(desk.connection, desk.dialect, [recurring.new_task(row, definition, occurrence)])[0]
        begun = {"task_id": made.id, "last_task_id": made.id, "last_scheduled_at": now}
        schedules.write(desk.connection, desk.dialect.tables, name, **begun, **moved)
        return made
    if schedules.live_task(desk.connection, desk.dialect.tables, row.task_id) == TaskStatus.PENDING:
        schedules.make_due(desk.connection, desk.dialect.tables, row.task_id)
    else:
        moved["requested_at"] = now
    if moved:
        schedules.write(desk.connection, desk.dialect.tables, name, **moved)
    return Enqueued(row.task_id, created=False)


def reschedule(desk: Desk, name: str, when: datetime | float) -> Schedule:
    """Set the next regular time, a moment or seconds from now; the times after it follow from it.

    Raises:
        ScheduleNotFound: there is none.
    """
    _, now = _locked(desk, name)
    return _written(desk, name, next_at=later(now, when) if isinstance(when, (int, float)) else when)


def pause(desk: Desk, name: str) -> Schedule:
    """Begin no occurrence any more; one that waits for its retry is cancelled, one that runs ends by itself.

    Raises:
        ScheduleNotFound: there is none.
    """
    row, now = _locked(desk, name)
    _cancel_waiting(desk, row)
    return _written(desk, name, paused_at=row.paused_at or now)


def resume(desk: Desk, name: str) -> Schedule:
    """Go on with the next regular time after now; what would have run in between is left out.

    Raises:
        ScheduleNotFound: there is none.
    """
    row, now = _locked(desk, name)
    values: dict[str, Any] = {"paused_at": None}
    if row.paused_at is not None and row.next_at is not None and row.next_at < now:
        timing = read_definition(row.definition).timing
        values["next_at"] = _first_after(timing, row.next_at, now)
    return _written(desk, name, **values)


def _first_after(timing: Timing, next_at: datetime, now: datetime) -> datetime | None:
    if not timing.planned:
        return now
    return timing.after(timing.due(next_at, now, 1)[-1] if isinstance(timing, FixedRate) else now)


# --- rows ---------------------------------------------------------------------------------------------------------------


def _locked(desk: Desk, name: str) -> tuple[ScheduleRow, datetime]:
    locked = schedules.lock(desk.connection, desk.dialect.tables, name)
    if locked is None and name in desk.declared:
        declare(desk.connection, desk.dialect, {name: desk.declared[name]}, None, desk.lease)
        locked = schedules.lock(desk.connection, desk.dialect.tables, name)
    if locked is None:
        raise _not_found(desk, name)
    return locked


def _not_found(desk: Desk, name: str) -> ScheduleNotFound:
    known = {row.name for row in schedules.listed(desk.connection, desk.dialect.tables)}
    return ScheduleNotFound(name, sorted(known | desk.declared.keys()))


def _unwritten(desk: Desk, name: str) -> ScheduleRow:
    """Return the row that the next worker will write for a schedule of the code."""
    one = desk.declared[name]
    next_at = one.definition.timing.after(schedules.now(desk.connection))
    blank = dict.fromkeys(field.name for field in fields(ScheduleRow)) | dict.fromkeys(("runs", "successes", "runs_since_success"), 0)
    return ScheduleRow(**blank | {"name": name, "source": CODE, "type": name, "definition": one.definition.form(), "next_at": next_at})


def _written(desk: Desk, name: str, **values: Any) -> Schedule:
    schedules.write(desk.connection, desk.dialect.tables, name, **values)
    desk.dialect.wake(desk.connection)
    return get(desk, name)


def _cancel_waiting(desk: Desk, row: ScheduleRow) -> None:
    if row.task_id is None:
        return
    if tasks.cancel_pending(desk.connection, desk.dialect.tables, row.task_id):
        recurring.free(desk.connection, desk.dialect, row.name)


def _known_types(desk: Desk) -> frozenset[str]:
    alive = nodes.alive(desk.connection, desk.dialect.tables, desk.lease)
    return frozenset().union(*(node["types"] for node in alive))


def _schedule(desk: Desk, row: ScheduleRow, known: frozenset[str]) -> Schedule:
    here = row.name in desk.declared if row.source == CODE else row.type in desk.types
    if not here and row.type not in known:
        status = ScheduleStatus.ORPHANED
    elif row.task_id is not None:
        status = ScheduleStatus.RUNNING
    else:
        status = ScheduleStatus.WAITING if row.paused_at is None else ScheduleStatus.PAUSED
    columns = {one.name: getattr(row, one.name) for one in fields(Schedule) if hasattr(row, one.name)}
    return Schedule(**columns | {"definition": _read(row), "stored": row.source == DATABASE, "status": status})


def _read(row: ScheduleRow) -> Definition | None:
    try:
        return read_definition(row.definition)
    except InvalidArgument:
        return None

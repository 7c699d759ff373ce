"""Schedules as people and code see them, inside the caller's transaction. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from ..domain.errors import InvalidArgument, ScheduleConflict, ScheduleNotFound
from ..store import nodes, schedules
from ..store.dialects.base import Dialect
from ..store.schedules import CODE, DATABASE, ScheduleRow
from .declare import Declared
from .definition import Definition, read_definition


class ScheduleStatus(StrEnum):
    """What a schedule is doing."""

    WAITING = "waiting"
    """For its next time."""
    RUNNING = "running"
    """An occurrence has begun and not ended; it may be due, running, or waiting for a retry."""
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
    """Set while it is paused, also where an occurrence still runs."""
    state: Any = field(repr=False, hash=False)
    """What the last successful run has left."""
    runs: int
    """Runs that have ended, retries included."""
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


def listed(desk: Desk) -> list[Schedule]:
    """Return all schedules by name, also those of the code that no worker has written yet."""
    rows = {row.name: row for row in schedules.listed(desk.connection, desk.dialect.tables)}
    for name in desk.declared.keys() - rows.keys():
        rows[name] = _unwritten(desk, name)
    known = known_types(desk)
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
        raise not_found(desk, name)
    return _schedule(desk, row, known_types(desk))


def preview(desk: Desk, name: str, count: int) -> list[datetime]:
    """Return the next regular times; of a schedule whose next time follows from the end of the run that one alone.

    Raises:
        ScheduleNotFound: there is none.
        ScheduleConflict: a newer version has written it.
    """
    schedule = get(desk, name)
    if schedule.definition is None:
        raise ScheduleConflict(name, "can not be read by this version: a newer one has written it")
    moment, timing = schedule.next_at, schedule.definition.timing
    times: list[datetime] = []
    while moment is not None and len(times) < count:
        times.append(moment)
        moment = timing.after(moment) if timing.planned else None
    return times


def not_found(desk: Desk, name: str) -> ScheduleNotFound:
    """Return the error for a name that no schedule has."""
    known = {row.name for row in schedules.listed(desk.connection, desk.dialect.tables)}
    return ScheduleNotFound(name, sorted(known | desk.declared.keys()))


def is_orphaned(desk: Desk, row: ScheduleRow, known: frozenset[str]) -> bool:
    """Say whether neither this app's code nor a live node knows a schedule."""
    here = row.name in desk.declared if row.source == CODE else row.type in desk.types
    return not here and row.type not in known


def known_types(desk: Desk) -> frozenset[str]:
    """Return the task types that live nodes process."""
    alive = nodes.alive(desk.connection, desk.dialect.tables, desk.lease)
    return frozenset().union(*(node["types"] for node in alive))


def _unwritten(desk: Desk, name: str) -> ScheduleRow:
    """Return the row that the next worker will write for a schedule of the code."""
    definition = desk.declared[name].definition
    next_at = definition.timing.after(schedules.now(desk.connection))
    blank = dict.fromkeys(one.name for one in fields(ScheduleRow)) | dict.fromkeys(("runs", "successes", "runs_since_success"), 0)
    return ScheduleRow(**blank | {"name": name, "source": CODE, "type": name, "definition": definition.form(), "next_at": next_at})


def _schedule(desk: Desk, row: ScheduleRow, known: frozenset[str]) -> Schedule:
    if is_orphaned(desk, row, known):
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

"""Statements on schedules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from .clock import db_now, seconds_since
from .tables import Tables

CODE = "code"
"""The source of a schedule that an app declares."""
DATABASE = "database"
"""The source of a schedule that was created by the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One row of the schedule table; times are aware and in UTC, by the database's clock."""

    name: str
    source: str
    type: str
    payload: Any = field(repr=False)
    definition: Mapping[str, Any]
    superseded: Sequence[str] | None
    """Digests of the definitions that newer ones have replaced, so that an old version of the app is known as such."""
    declared_by: str | None
    """The node that has declared the definition."""
    next_at: datetime | None
    """The next regular time; null while it follows from the end of the run."""
    task_id: int | None
    """The occurrence that has begun and not ended: while there is one, there is no other."""
    requested_at: datetime | None
    """When a run by hand was asked for that is to follow the one that runs."""
    paused_at: datetime | None
    state: Any = field(repr=False)
    runs: int
    """Runs that have ended, retries included."""
    successes: int
    runs_since_success: int
    last_task_id: int | None
    last_scheduled_at: datetime | None
    last_started_at: datetime | None
    last_ended_at: datetime | None
    last_success_at: datetime | None


_COLUMNS = tuple(f.name for f in fields(ScheduleRow))


# --- read -------------------------------------------------------------------------------------------------------------


def get(connection: sa.Connection, tables: Tables, name: str) -> ScheduleRow | None:
    """Read one schedule."""
    row = connection.execute(_select(tables).where(tables.schedule.c.name == name)).one_or_none()
    return None if row is None else _row(row)


def listed(connection: sa.Connection, tables: Tables, names: Collection[str] | None = None) -> list[ScheduleRow]:
    """Read all schedules, or those with these names, by name."""
    statement = _select(tables).order_by(tables.schedule.c.name)
    if names is not None:
        statement = statement.where(tables.schedule.c.name.in_(names))
    return [_row(row) for row in connection.execute(statement)]


def now(connection: sa.Connection) -> datetime:
    """Read the database's clock."""
    moment: datetime = connection.execute(sa.select(db_now())).scalar_one()
    return moment


def ours(tables: Tables, types: Collection[str], declared: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the condition for the schedules that a node may serve: it knows their type, and those of the code by name."""
    c = tables.schedule.c
    return sa.and_(c.type.in_(types), sa.or_(c.source == DATABASE, c.name.in_(declared)))


def seconds_to_next(connection: sa.Connection, tables: Tables, served: sa.ColumnElement[bool]) -> float | None:
    """Return the seconds until the earliest of the served schedules is due; negative where one is overdue, ``None`` without any."""
    earliest = sa.select(sa.func.min(tables.schedule.c.next_at).label("at")).where(served, _waits(tables)).subquery()
    since: float | None = connection.execute(sa.select(seconds_since(earliest.c.at))).scalar()
    return None if since is None else -since


def unnoticed(connection: sa.Connection, tables: Tables, served: sa.ColumnElement[bool], most: int) -> list[str]:
    """Read the names of schedules whose occurrence has ended, or is gone, without their being told."""
    s, t = tables.schedule, tables.task
    statement = (
        sa.select(s.c.name)
        .select_from(s.outerjoin(t, t.c.id == s.c.task_id))
        .where(s.c.task_id.is_not(None), served, sa.or_(t.c.id.is_(None), t.c.finished_at.is_not(None)))
        .order_by(s.c.name)
        .limit(most)
    )
    return list(connection.execute(statement).scalars())


def live_task(connection: sa.Connection, tables: Tables, task_id: int) -> str | None:
    """Read the status of a task that has not ended; ``None`` where it has, or is gone."""
    c = tables.task.c
    status: str | None = connection.execute(sa.select(c.status).where(c.id == task_id, c.finished_at.is_(None))).scalar()
    return status


def ended_at(connection: sa.Connection, tables: Tables, task_id: int) -> datetime | None:
    """Read when a task has ended; ``None`` where it is gone."""
    ended: datetime | None = connection.execute(sa.select(tables.task.c.finished_at).where(tables.task.c.id == task_id)).scalar()
    return ended


# --- lock and write -----------------------------------------------------------------------------------------------------


class ScheduleLocked(Exception):
    """Another transaction has locked the schedule."""


def lock(connection: sa.Connection, tables: Tables, name: str, *, patient: bool = True) -> tuple[ScheduleRow, datetime] | None:
    """Lock one schedule until the transaction ends; return it and the database's now.

    Raises:
        ScheduleLocked: another transaction has locked it, and the caller is not ``patient`` enough to wait for its end.
    """
    c = tables.schedule.c
    one = sa.select(c.name).where(c.name == name)
    if not patient and connection.execute(one.with_for_update(skip_locked=True)).first() is None and connection.execute(one).first():
        raise ScheduleLocked
    # By a write, which locks on every database; on SQLite a read that is followed by a write may find it locked.
    if connection.execute(sa.update(tables.schedule).where(c.name == name).values(updated_at=db_now())).rowcount != 1:
        return None
    row = connection.execute(_select(tables, db_now()).where(c.name == name)).one()
    return _row(row[:-1]), row[-1]


def lock_due(connection: sa.Connection, tables: Tables, served: sa.ColumnElement[bool], most: int) -> list[tuple[ScheduleRow, datetime]]:
    """Lock due schedules that no other transaction has locked; return each with the database's now, the longest overdue first."""
    statement = (
        _select(tables, db_now())
        .where(served, _waits(tables), tables.schedule.c.next_at <= db_now())
        .order_by(tables.schedule.c.next_at, tables.schedule.c.name)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    return [(_row(row[:-1]), row[-1]) for row in connection.execute(statement)]


def write(connection: sa.Connection, tables: Tables, name: str, **values: Any) -> None:
    """Change columns of a schedule that the transaction has locked."""
    connection.execute(sa.update(tables.schedule).where(tables.schedule.c.name == name).values(**values, updated_at=db_now()))


def advance(connection: sa.Connection, tables: Tables, row: ScheduleRow, **values: Any) -> bool:
    """Change columns of a schedule that waits, if nobody has moved it on in between."""
    c = tables.schedule.c
    same = sa.and_(c.name == row.name, c.task_id.is_(None), c.next_at == row.next_at)
    return connection.execute(sa.update(tables.schedule).where(same).values(**values, updated_at=db_now())).rowcount == 1


def adopt(connection: sa.Connection, tables: Tables, name: str, task_id: int) -> bool:
    """Make a task the one occurrence of a schedule that has begun, if there is no other."""
    c = tables.schedule.c
    free = sa.update(tables.schedule).where(c.name == name, c.task_id.is_(None))
    return connection.execute(free.values(task_id=task_id, last_task_id=task_id, updated_at=db_now())).rowcount == 1


def make_due(connection: sa.Connection, tables: Tables, task_id: int) -> None:
    """Let a task that waits run now."""
    c = tables.task.c
    waiting = sa.update(tables.task).where(c.id == task_id, c.status == sa.literal_column("'PENDING'"), c.available_at > db_now())
    connection.execute(waiting.values(available_at=db_now(), updated_at=db_now()))


def delete(connection: sa.Connection, tables: Tables, name: str) -> None:
    """Remove a schedule."""
    connection.execute(sa.delete(tables.schedule).where(tables.schedule.c.name == name))


def _waits(tables: Tables) -> sa.ColumnElement[bool]:
    c = tables.schedule.c
    return sa.and_(c.task_id.is_(None), c.paused_at.is_(None), c.next_at.is_not(None))


def _select(tables: Tables, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    return sa.select(*(tables.schedule.c[name] for name in _COLUMNS), *more)


def _row(row: Sequence[Any]) -> ScheduleRow:
    return ScheduleRow(**dict(zip(_COLUMNS, row, strict=True)))

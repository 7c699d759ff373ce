"""Removing tasks that have ended, in bounded batches that lock nothing which is in use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..domain.states import TaskStatus
from .clock import db_after, seconds_since
from .tables import Tables


@dataclass(frozen=True, slots=True)
class Mark:
    """The last task of a batch: the next one continues after it, so that none wades through what the others have removed."""

    finished_at: datetime
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Which tasks to remove in one transaction: the oldest first."""

    status: TaskStatus
    kept_for: float
    """Seconds since their end, by the database's clock."""
    archive: bool
    """Move them to the archive; otherwise they and their failed attempts are deleted."""
    most: int
    after: Mark | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """What a batch has removed."""

    count: int
    last: Mark | None


def remove_in_steps(connection: sa.Connection, tables: Tables, batch: Batch) -> Removed:
    """Remove a batch by statements that any database knows, in the caller's transaction. Never commits."""
    c = tables.task.c
    # One that somebody has locked is in use: it is left for the next run.
    picked = connection.execute(
        sa.select(c.finished_at, c.id)
        .where(*_ended(tables, batch.status, batch.kept_for), *_after(tables, batch.after))
        .order_by(c.finished_at, c.id)
        .limit(batch.most)
        .with_for_update(skip_locked=True)
    ).all()
    if not picked:
        return Removed(0, None)
    ids = [row.id for row in picked]
    if batch.archive:
        _copy_to_archive(connection, tables, ids)
    else:
        connection.execute(sa.delete(tables.attempt).where(tables.attempt.c.task_id.in_(ids)))
    connection.execute(sa.delete(tables.task).where(c.id.in_(ids)))
    return Removed(len(picked), Mark(*picked[-1]))


def _copy_to_archive(connection: sa.Connection, tables: Tables, ids: list[int]) -> None:
    # A task that was brought back from the archive by hand may come a second time.
    connection.execute(sa.delete(tables.archive).where(tables.archive.c.id.in_(ids)))
    columns = [column.name for column in tables.task.columns]
    rows = sa.select(*tables.task.columns).where(tables.task.c.id.in_(ids))
    connection.execute(sa.insert(tables.archive).from_select(columns, rows, include_defaults=False))


def count_ended(connection: sa.Connection, tables: Tables, status: TaskStatus, kept_for: float) -> int:
    """Count the tasks that ended so, more than ``kept_for`` seconds ago."""
    statement = sa.select(sa.func.count()).select_from(tables.task).where(*_ended(tables, status, kept_for))
    return connection.execute(statement).scalar_one()


def _ended(tables: Tables, status: TaskStatus, kept_for: float) -> list[sa.ColumnElement[Any]]:
    c = tables.task.c
    return [c.status == status.value, c.finished_at.is_not(None), c.finished_at <= db_after(-kept_for)]


def _after(tables: Tables, mark: Mark | None) -> list[sa.ColumnElement[Any]]:
    if mark is None:
        return []
    c = tables.task.c
    return [c.finished_at >= mark.finished_at, sa.or_(c.finished_at > mark.finished_at, c.id > mark.id)]


def last_run(connection: sa.Connection, tables: Tables, lease: str) -> tuple[str | None, float] | None:
    """Read who has a lease, and the seconds since it ended: negative while it is held, and without a holder those since it was given back.

    ``None`` says that nobody ever had it.
    """
    c = tables.lease.c
    row = connection.execute(sa.select(c.node, seconds_since(c.expires_at)).where(c.name == lease)).one_or_none()
    return None if row is None else (row[0], float(row[1]))

"""Finding tasks by what people ask for, in bounded time however many there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..domain.states import TaskStatus
from ..domain.task import Task
from . import tasks
from .dialects.base import Dialect

_FEW = 50_000
"""Tasks of the statuses that are asked for, up to which their index finds them faster than a walk through the ids does."""
_SPANS = 20_000, 100_000
"""Ids in the first step of a walk, and in the largest."""
BUDGET = 0.15
"""Seconds after which a walk is broken off: the page then holds what was found, and the next one goes on there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tasks are asked for: those for which everything holds that is given."""

    statuses: tuple[TaskStatus, ...] = ()
    types: tuple[str, ...] = ()
    priority: int | None = None
    key: str | None = None
    error: str | None = None
    """Part of ``last_error``, in any case."""
    payload: tuple[tuple[str, ...], Any] | None = None
    """The names that lead to a value inside the payload, and that value."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    available_after: datetime | None = None
    available_before: datetime | None = None

    @property
    def empty(self) -> bool:
        """Whether every task is asked for."""
        return all(getattr(self, one.name) in ((), None) for one in fields(self))

    @property
    def by_status_only(self) -> bool:
        """Whether nothing but statuses is asked for."""
        return all(one.name == "statuses" or getattr(self, one.name) in ((), None) for one in fields(self))


@dataclass(frozen=True, slots=True)
class Page:
    """Tasks, newest first, and where the next page begins."""

    items: list[Task]
    below: int | None
    """The next page has ids below this; None where there is no more."""


def conditions(dialect: Dialect, only: Filter) -> list[sa.ColumnElement[bool]]:
    """Return what a task must meet."""
    c = dialect.tables.task.c
    found: list[sa.ColumnElement[bool]] = []
    if only.statuses:
        found.append(c.status.in_([status.value for status in only.statuses]))
    if only.types:
        found.append(c.type.in_(only.types))
    if only.priority is not None:
        found.append(c.priority == only.priority)
    if only.key is not None:
        found.append(c.idempotency_key == only.key)
    if only.error is not None:
        found.append(sa.func.lower(c.last_error).contains(only.error.lower(), autoescape=True))
    if only.payload is not None:
        found.append(dialect.payload_has(*only.payload))
    for column in ("created", "finished", "available"):
        after, before = getattr(only, f"{column}_after"), getattr(only, f"{column}_before")
        found += [c[f"{column}_at"] >= after] if after is not None else []
        found += [c[f"{column}_at"] < before] if before is not None else []
    return found


def page(
    connection: sa.Connection,
    dialect: Dialect,
    only: Filter,
    *,
    limit: int,
    offset: int = 0,
    below: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Page:
    """Read a page of tasks, newest first; in the caller's transaction, never commits.

    Where no index serves the filter, ids are walked from the newest down until the page is full or ``BUDGET`` is spent: the page
    may then hold fewer than ``limit`` and still have a next one.

    Args:
        below: only ids below this: where the last page has ended.
    """
    if _served(connection, dialect, only):
        items = _read(connection, dialect, only, limit + 1, offset, below, None)
        return Page(items[:limit], items[limit - 1].id if len(items) > limit else None)
    return _walk(connection, dialect, only, limit + offset, offset, below, clock)


def count(connection: sa.Connection, dialect: Dialect, only: Filter, most: int) -> int:
    """Count the tasks up to a number; in the caller's transaction, never commits."""
    inner = sa.select(sa.literal(1)).select_from(dialect.tables.task).where(*conditions(dialect, only)).limit(most).subquery()
    return int(connection.execute(sa.select(sa.func.count()).select_from(inner)).scalar_one())


def ids(connection: sa.Connection, dialect: Dialect, only: Filter, *, below: int | None, most: int) -> list[int]:
    """Read ids of tasks, newest first; in the caller's transaction, never commits."""
    c = dialect.tables.task.c
    statement = sa.select(c.id).where(*conditions(dialect, only)).order_by(c.id.desc()).limit(most)
    return list(connection.execute(statement if below is None else statement.where(c.id < below)).scalars())


def _served(connection: sa.Connection, dialect: Dialect, only: Filter) -> bool:
    if only.by_status_only or only.key is not None:
        return True
    if not only.statuses:
        return False
    depth = dialect.depth(connection)
    return sum(depth.tasks[status] for status in only.statuses) <= _FEW


def _read(
    connection: sa.Connection, dialect: Dialect, only: Filter, limit: int, offset: int, below: int | None, above: int | None
) -> list[Task]:
    c = dialect.tables.task.c
    where: Sequence[sa.ColumnElement[bool]] = conditions(dialect, only)
    where = [*where, *([c.id < below] if below is not None else []), *([c.id >= above] if above is not None else [])]
    return tasks.select(connection, dialect.tables, where, limit=limit, offset=offset)


def _walk(
    connection: sa.Connection, dialect: Dialect, only: Filter, most: int, offset: int, below: int | None, clock: Callable[[], float]
) -> Page:
    started, span = clock(), _SPANS[0]
    newest = connection.execute(sa.select(sa.func.max(dialect.tables.task.c.id))).scalar_one() or 0
    high = newest + 1 if below is None else min(below, newest + 1)
    found: list[Task] = []
    while high > 1 and len(found) < most:
        low = max(1, high - span)
        found += _read(connection, dialect, only, most - len(found), 0, high, low)
        high = found[-1].id if len(found) == most else low
        span = min(2 * span, _SPANS[1])
        if clock() - started > BUDGET:
            break
    return Page(found[offset:], high if high > 1 else None)

"""The schedules that an app's code declares, and how their rows follow the code when it changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..domain.schedule import replan
from ..store import nodes, schedules
from ..store.dialects.base import Dialect
from ..store.schedules import CODE, ScheduleRow
from .definition import Definition, digest

_REMEMBERED = 20
"""Definitions that are remembered as replaced."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule of the code; its name is the task type of its occurrences too."""

    name: str
    definition: Definition
    place: str
    """Where it is declared, for people."""


def declare(connection: sa.Connection, dialect: Dialect, declared: Mapping[str, Declared], node: str | None, lease: float) -> list[str]:
    """Write what the code declares, in the caller's transaction. Never commits. Writes nothing where the rows agree with it.

    The newest definition holds while a node lives that declares it. Until then a node with one that it has replaced, an older
    version of the app in a rolling deploy, leaves it alone; after that it puts its own in place.

    Returns:
        A sentence for each schedule whose name is that of a stored one.
    """
    found = {row.name: row for row in schedules.listed(connection, dialect.tables, list(declared))}
    for name in sorted(declared.keys() - found.keys()):
        _insert(connection, dialect, declared[name], node)
    alive = {one["id"] for one in nodes.alive(connection, dialect.tables, lease)} if found else set()
    for name, row in sorted(found.items()):
        if row.source == CODE:
            _follow(connection, dialect, declared[name], row, node, alive)
    taken = [name for name, row in found.items() if row.source != CODE]
    return [
        f"the schedule {name!r} of {declared[name].place} has the name of a stored one: give one of them another" for name in sorted(taken)
    ]


def _insert(connection: sa.Connection, dialect: Dialect, one: Declared, node: str | None) -> None:
    now = schedules.now(connection)
    values = {
        "name": one.name,
        "source": CODE,
        "type": one.name,
        "definition": one.definition.text(),
        "declared_by": node,
        "next_at": one.definition.timing.after(now),
    }
    dialect.insert_absent(connection, dialect.tables.schedule, values)


def _follow(connection: sa.Connection, dialect: Dialect, one: Declared, row: ScheduleRow, node: str | None, alive: set[str]) -> None:
    mine = one.definition.form()
    if row.definition == mine:
        if row.declared_by not in alive and node is not None and node in alive:
            schedules.write(connection, dialect.tables, row.name, declared_by=node)
        return
    if _is_older(row, mine) and row.declared_by in alive:
        return
    locked = schedules.lock(connection, dialect.tables, row.name)
    if locked is None or locked[0].definition != row.definition:
        return  # another node has replaced it in between; the next look decides
    schedules.write(connection, dialect.tables, row.name, **_replaced(one, *locked), declared_by=node)


def _is_older(row: ScheduleRow, mine: Mapping[str, Any]) -> bool:
    return digest(mine) in (row.superseded or ())


def _replaced(one: Declared, row: ScheduleRow, now: datetime) -> dict[str, Any]:
    mine = one.definition.form()
    superseded = [known for known in row.superseded or () if known != digest(mine)] + [digest(row.definition)]
    values: dict[str, Any] = {"definition": one.definition.text(), "superseded": json.dumps(superseded[-_REMEMBERED:])}
    if mine["timing"] != row.definition["timing"]:
        values["next_at"] = _next_at(one, row, now)
    return values


def _next_at(one: Declared, row: ScheduleRow, now: datetime) -> datetime | None:
    if row.task_id is not None and not one.definition.timing.planned:
        return None
    return replan(one.definition.timing, now, began=row.last_scheduled_at, ended=row.last_ended_at)

"""What is read to say why a task does not run: few statements, each bounded and by an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from .clock import db_now
from .tables import Tables


@dataclass(frozen=True, slots=True)
class Pause:
    """A type that is paused, or with the type ``*`` all of them."""

    type: str
    since: datetime
    by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Running:
    """How many tasks each node runs, in all and of one type."""

    in_all: Mapping[str, int]
    of_type: Mapping[str, int]


def now(connection: sa.Connection) -> datetime:
    """Read the database's clock."""
    moment: datetime = connection.execute(sa.select(db_now())).scalar_one()
    return moment


def pauses(connection: sa.Connection, tables: Tables, types: Sequence[str] | None = None) -> list[Pause]:
    """Read the pauses that hold up these types, or all there are."""
    p = tables.type.c
    statement = sa.select(p.type, p.paused_at, p.paused_by, p.pause_reason).where(p.paused_at.is_not(None))
    if types is not None:
        statement = statement.where(p.type.in_([*types, "*"]))
    return [Pause(*row) for row in connection.execute(statement.order_by(p.type))]


def node(connection: sa.Connection, tables: Tables, name: str | None) -> Mapping[str, Any] | None:
    """Read the row of a node."""
    row = connection.execute(sa.select(tables.node).where(tables.node.c.id == name)).one_or_none()
    return None if row is None else dict(row._mapping)


def running(connection: sa.Connection, tables: Tables, task_type: str) -> Running:
    """Count what runs, on every node; there are never more rows to count than slots."""
    c = tables.task.c
    statement = (
        sa.select(c.claimed_by, sa.func.count(), sa.func.sum(sa.case((c.type == task_type, 1), else_=0)))
        .where(c.status == sa.literal_column("'RUNNING'"), c.finished_at.is_(None), c.claimed_by.is_not(None))
        .group_by(c.claimed_by)
    )
    rows = connection.execute(statement).all()
    return Running({name: in_all for name, in_all, _ in rows}, {name: int(of_type) for name, _, of_type in rows if of_type})


def holders(connection: sa.Connection, tables: Tables, task_type: str, most: int) -> list[int]:
    """Read the ids of tasks of this type that run."""
    c = tables.task.c
    statement = sa.select(c.id).where(c.status == sa.literal_column("'RUNNING'"), c.finished_at.is_(None), c.type == task_type)
    return sorted(connection.execute(statement.limit(most)).scalars())

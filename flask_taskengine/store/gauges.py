"""What is measured of the queue as a whole: one statement that reads live rows by their index and never counts ended ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from .clock import db_now, seconds_since
from .tables import Tables

MOST_COUNTED = 100_000
"""PENDING tasks of one type that are counted; a larger number reads as this one."""

Row = tuple[str, str | None, float | None, float | None, float | None]
"""Kind; type, or a node's limits as JSON text; number; how many of it are due; seconds since the earliest was due."""


@dataclass(slots=True)
class QueueState:
    """The queue at one moment; a type that is not in a mapping has none."""

    pending: dict[str, int] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)
    due_for: dict[str, float] = field(default_factory=dict)
    """Seconds since the earliest due task was due."""
    running: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    """Types; ``*`` stands for all of them."""
    nodes: int = 0
    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    """By type and ``cluster_wide`` or ``per_node``; of nodes that differ, the stricter."""
    dead_tuples: int | None = None
    """None where the database does not say."""
    notify_queue: float | None = None
    """How full the database's queue of notifications is, 0 to 1; None where there is none."""


def statement(tables: Tables, lease: float) -> sa.CompoundSelect[Any]:
    """Return the statement for databases that have no better one of their own."""
    c, n, t = tables.task.c, tables.node.c, tables.type.c
    due = sa.case((c.available_at <= db_now(), 1), else_=0)
    none: sa.ColumnElement[Any] = sa.null()
    one: sa.ColumnElement[int] = sa.literal_column("1")
    pending = sa.select(_kind("PENDING"), c.type, sa.func.count(), sa.func.sum(due), sa.func.max(seconds_since(c.available_at)))
    running = sa.select(_kind("RUNNING"), c.type, sa.func.count(), none, none)
    node = sa.select(_kind("node"), sa.cast(n.limits, sa.Text), one, none, none)
    return sa.union_all(
        pending.where(c.status == sa.literal_column("'PENDING'"), c.finished_at.is_(None)).group_by(c.type),
        running.where(c.status == sa.literal_column("'RUNNING'"), c.finished_at.is_(None)).group_by(c.type),
        sa.select(_kind("paused"), t.type, one, none, none).where(t.paused_at.is_not(None)),
        node.where(n.expired_at.is_(None), seconds_since(n.heartbeat_at) <= lease),
    )


def _kind(name: str) -> sa.ColumnClause[str]:
    return sa.literal_column(f"'{name}'", sa.String()).label("kind")  # type: ignore[return-value]


def state_of(rows: Iterable[Row]) -> QueueState:
    """Put the rows of the statement together."""
    state = QueueState()
    for kind, of, number, due, due_for in rows:
        name = of or ""
        match kind:
            case "PENDING":
                state.pending[name] = int(number or 0)
                state.due[name] = int(due or 0)
                if due_for is not None and due_for > 0:
                    state.due_for[name] = float(due_for)
            case "RUNNING":
                state.running[name] = int(number or 0)
            case "paused":
                state.paused.add(name)
            case "node":
                state.nodes += 1
                _add_limits(state, json.loads(name))
            case "dead_tuples":
                state.dead_tuples = int(number or 0)
            case _:
                state.notify_queue = float(number or 0)
    return state


def _add_limits(state: QueueState, limits: Mapping[str, Any]) -> None:
    for task_type, limit in limits.items():
        for scope in ("cluster_wide", "per_node"):
            value = limit.get(scope) if isinstance(limit, Mapping) else limit if scope == "cluster_wide" else None
            if value is not None:
                state.limits[task_type, scope] = min(value, state.limits.get((task_type, scope), value))

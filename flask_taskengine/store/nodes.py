"""Statements on nodes and on leases for work that one node at a time may do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from .clock import db_after, db_now, seconds_since
from .tables import Tables
from .types import UtcDateTime


def register(connection: sa.Connection, tables: Tables, node: Mapping[str, Any]) -> None:
    """Write the row of a node that begins; it counts as alive from now on."""
    values = dict(node)
    values["types"] = json.dumps(sorted(node["types"]))
    values["limits"] = json.dumps(node["limits"])
    connection.execute(sa.insert(tables.node).values(**values))


def beat(connection: sa.Connection, tables: Tables, nodes: Sequence[str]) -> dict[str, datetime]:
    """Extend the leases of nodes; return those that still had one, each with the time of its beat. An expired node can not come back."""
    n = tables.node.c
    connection.execute(sa.update(tables.node).where(n.id.in_(nodes), n.expired_at.is_(None)).values(heartbeat_at=db_now()))
    beaten = sa.select(n.id, n.heartbeat_at).where(n.id.in_(nodes), n.expired_at.is_(None))
    return {node: at for node, at in connection.execute(beaten)}


def now(connection: sa.Connection) -> datetime:
    """Read the database's clock."""
    moment: datetime = connection.execute(sa.select(db_now())).scalar_one()
    return moment


def heard(connection: sa.Connection, tables: Tables, node: str, since: datetime) -> tuple[float, float] | None:
    """Read the seconds from a node's last beat to now, and from ``since`` to now; None where its lease is lost."""
    n = tables.node.c
    statement = sa.select(seconds_since(n.heartbeat_at), seconds_since(sa.literal(since, UtcDateTime())))
    row = connection.execute(statement.where(n.id == node, n.expired_at.is_(None))).one_or_none()
    return None if row is None else (float(row[0]), float(row[1]))


def expire(connection: sa.Connection, tables: Tables, node: str, lease: float | None) -> bool:
    """Mark a node as expired if it has been silent for longer than the lease, or at once without one.

    Returns:
        Whether its tasks may be taken: it is expired now, or has no row. A node whose row another transaction
        holds is claiming or beating at this moment, so it is left alone.
    """
    n = tables.node.c
    statement = sa.select(n.expired_at, seconds_since(n.heartbeat_at)).where(n.id == node)
    locked = connection.execute(statement.with_for_update(skip_locked=True)).one_or_none()
    if locked is None:
        return connection.execute(statement).one_or_none() is None
    if locked[0] is not None:
        return True
    silent = [] if lease is None else [seconds_since(n.heartbeat_at) > lease]
    statement_expire = sa.update(tables.node).where(n.id == node, n.expired_at.is_(None), *silent).values(expired_at=db_now())
    return connection.execute(statement_expire).rowcount == 1


def remove(connection: sa.Connection, tables: Tables, nodes: Sequence[str]) -> None:
    """Remove nodes that have ended and run nothing any more."""
    connection.execute(sa.delete(tables.node).where(tables.node.c.id.in_(nodes)))


def forget_expired(connection: sa.Connection, tables: Tables, older_than: float) -> int:
    """Remove the names of nodes that have been silent for longer than so many seconds and run nothing any more."""
    n, t = tables.node.c, tables.task.c
    runs = sa.select(t.id).where(t.status == sa.literal_column("'RUNNING'"), t.finished_at.is_(None), t.claimed_by == n.id).exists()
    return connection.execute(sa.delete(tables.node).where(seconds_since(n.heartbeat_at) > older_than, ~runs)).rowcount


def alive(connection: sa.Connection, tables: Tables, lease: float) -> list[Mapping[str, Any]]:
    """Read the nodes that hold their lease, with the types and limits of each."""
    n = tables.node.c
    statement = sa.select(tables.node).where(n.expired_at.is_(None), seconds_since(n.heartbeat_at) <= lease).order_by(n.id)
    return [dict(row._mapping) for row in connection.execute(statement)]


def cluster_limits(connection: sa.Connection, tables: Tables) -> dict[str, int]:
    """Read the cluster-wide limits in force: of nodes that differ, the stricter holds."""
    strictest: dict[str, int] = {}
    for limits in connection.execute(sa.select(tables.node.c.limits).where(tables.node.c.expired_at.is_(None))).scalars():
        for task_type, limit in limits.items():
            wide = limit if isinstance(limit, int) else limit.get("cluster_wide")
            if wide is not None:
                strictest[task_type] = min(wide, strictest.get(task_type, wide))
    return strictest


def per_node_limit(node: Mapping[str, Any], task_type: str) -> int | None:
    """Return how many tasks of a type a node runs at once, by its row; ``None`` is no limit but its slots."""
    limit = node["limits"].get(task_type)
    per_node: int | None = limit.get("per_node") if isinstance(limit, Mapping) else None
    return per_node


def take_lease(connection: sa.Connection, tables: Tables, name: str, node: str, duration: float) -> bool:
    """Take or extend the right to do the named work for ``duration`` seconds; false while another node has it."""
    lease = tables.lease.c
    free = sa.or_(lease.node == node, lease.node.is_(None), seconds_since(lease.expires_at) >= 0)
    taken = sa.update(tables.lease).where(lease.name == name, free).values(node=node, expires_at=db_after(duration))
    if connection.execute(taken).rowcount == 1:
        return True
    missing = ~sa.select(lease.name).where(lease.name == name).exists()
    row = sa.select(sa.literal(name, lease.name.type), sa.literal(node, lease.node.type), db_after(duration)).where(missing)
    try:
        with connection.begin_nested():
            written = sa.insert(tables.lease).from_select(["name", "node", "expires_at"], row).execution_options(preserve_rowcount=True)
            return connection.execute(written).rowcount == 1
    except sa.exc.IntegrityError:
        return False  # another node wrote the same name in between, and has the lease


def give_back_lease(connection: sa.Connection, tables: Tables, name: str, node: str) -> None:
    """Let go of the named work."""
    lease = tables.lease.c
    connection.execute(sa.update(tables.lease).where(lease.name == name, lease.node == node).values(node=None, expires_at=db_now()))

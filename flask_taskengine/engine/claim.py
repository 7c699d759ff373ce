"""Which tasks a node may claim now: the types it knows, minus those at a limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from ..domain.task import Claimed
from ..store import nodes, tasks
from ..store.dialects.base import Dialect
from ..store.lowwater import LowWater


@dataclass(frozen=True, slots=True)
class Rooms:
    """How many tasks of each type a node may claim, and which types have no room."""

    open: Mapping[str, int]
    saturated: frozenset[str]
    limits: Mapping[str, int] = field(default_factory=dict)
    """Cluster-wide limits in force, as far as they were asked for."""


def rooms_here(types: Collection[str], free: int, per_node: Mapping[str, int], running: Callable[[str], int]) -> Rooms:
    """Return the room that this node's own slots and per-node limits leave."""
    rooms = {t: min(free, per_node[t] - running(t)) if t in per_node else free for t in types}
    return Rooms({t: room for t, room in rooms.items() if room > 0}, frozenset(t for t, room in rooms.items() if room <= 0))


def within_cluster(connection: sa.Connection, dialect: Dialect, rooms: Rooms, known: Mapping[str, int] | None = None) -> Rooms:
    """Return the rooms that the cluster-wide limits leave, by one look at what runs everywhere.

    Only a claim that holds the limits' lock in the same transaction may rely on it.

    Args:
        known: the limits in force, where they have been read a moment ago.
    """
    in_force = nodes.cluster_limits(connection, dialect.tables) if known is None else known
    limits = {t: n for t, n in in_force.items() if t in rooms.open}
    if not limits:
        return rooms
    running = tasks.running_by_type(connection, dialect.tables, sorted(limits))
    left = {t: min(room, limits[t] - running.get(t, 0)) if t in limits else room for t, room in rooms.open.items()}
    full = frozenset(t for t, room in left.items() if room <= 0)
    return Rooms({t: room for t, room in left.items() if room > 0}, rooms.saturated | full, in_force)


def claim_limited(
    connection: sa.Connection, dialect: Dialect, node: str, rooms: Rooms, limited: Collection[str], most: int, low_water: LowWater | None
) -> tuple[list[Claimed], Rooms]:
    """Claim within the cluster-wide limits, in a transaction of the caller's that holds the limits' lock until it ends."""
    dialect.lock_limits(connection, [t for t in limited if t in rooms.open])
    rooms = within_cluster(connection, dialect, rooms)
    return (dialect.claim(connection, node, rooms.open, most, low_water) if rooms.open else []), rooms

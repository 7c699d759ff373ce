"""Claims due tasks for the free slots and hands them over: a claimed task is a started task."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping

from ..domain.limits import Limits
from ..domain.task import Claimed
from ..engine.claim import Rooms, claim_limited, rooms_here, within_cluster
from ..signals import claim_made, task_claimed
from ..store.lowwater import LowWater
from .database import Database
from .events import facts, tell
from .loop import Loop
from .slots import Slots

SATURATED_RECHECK = 0.5
"""Seconds between looks at a cluster-wide limit while a type at its limit has due tasks."""
_CONTENDED = (0.01, 1.0)
"""Seconds, growing from the first to the second, to wait where something is due that another transaction has locked."""
_DRAINING = 0.1
_SHORT = 0.02
"""Seconds below which a task is so short that claiming for each one alone is a cost worth avoiding."""


class Dispatcher:
    """One thread: claim, hand over, sleep until something is due or somebody wakes it."""

    def __init__(self, database: Database, slots: Slots, start: Callable[[Claimed], None], only: frozenset[str] | None) -> None:
        self._database = database
        self._host = database.host
        self._slots = slots
        self._start = start
        self._only = only
        self._line = database.line()
        self._loop = Loop("dispatcher", self._run_once)
        limits = {t: self._limits(t) for t in self.types()}
        self._per_node = {t: limit.per_node for t, limit in limits.items() if limit.per_node is not None}
        self.cluster_limits = {t: limit.cluster_wide for t, limit in limits.items() if limit.cluster_wide is not None}
        """This node's own cluster-wide limits."""
        self.limits = {t: limit.in_force for t, limit in limits.items() if limit.in_force}
        """All limits of this node, which it writes into its row."""
        self.node = ""
        self._low_water = LowWater()
        self.last_claim = time.monotonic()
        self.foreign: frozenset[str] = frozenset()
        """Types that no live node knows: claimed so that their tasks end."""
        self.holding = threading.Event()
        """Claims are made only while this is set: the node has its lease."""
        self.draining = False
        self.drained = threading.Event()
        """Set once a round found nothing due while nothing ran and every end was recorded."""
        self.recorded: Callable[[], bool] = lambda: True
        """Says whether every end is recorded: what has failed may be due again."""
        self._slot_wanted = True
        self._types_wanted: frozenset[str] = frozenset()
        self._backlog = False
        self._contended = 0
        self._lingering = False
        self._full_at: set[str] = set()
        self._limits_seen: Mapping[str, int] = {}
        """Of the last full round: a change is seen by the next one."""
        self._next_full_round = 0.0
        self._woken = False

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """Look now: something may be due."""
        self._woken = True
        self._loop.wake()

    def slot_freed(self, task_type: str) -> None:
        """Look again if a slot, or room for this type, was all that was missing."""
        if self._lingering:
            if self._slots.free >= self._slots.size // 2:
                self._loop.wake()
        elif self._slot_wanted or task_type in self._types_wanted:
            self.wake()

    def stop(self) -> None:
        """Claim nothing more; returns after the current claim has been handed over."""
        self._loop.stop()
        self._line.close()

    def types(self) -> frozenset[str]:
        """Return the types that this node processes."""
        known = frozenset(self._host.registry.types())
        return known if self._only is None else known & self._only

    def rooms(self, free: int) -> Rooms:
        """Return what could be claimed for so many free slots, as far as this node alone can say."""
        return rooms_here(self.types() | self.foreign, free, self._per_node, self._slots.running)

    def _limits(self, task_type: str) -> Limits:
        processor = self._host.registry.get(task_type)
        return self._host.settings.limits(task_type, processor.limits if processor else None)

    # --- one round ----------------------------------------------------------------------------------------------------

    def _run_once(self) -> float | None:
        self._slot_wanted = True
        free = min(self._slots.free, self._host.settings.batch_size)
        if free <= 0 or not self.holding.is_set():
            return None
        if (linger := self._linger(free)) > 0:
            return linger
        rooms = self.rooms(free)
        quiet = self._slots.in_use == 0 and self.recorded()
        if not rooms.open:
            if quiet:
                self.drained.set()
            return None
        left = self._next_full_round - time.monotonic()
        if left > 0 and not self._woken and self._full_at and not self._has_room_again(rooms):
            return min(left, SATURATED_RECHECK)
        # Before the look, so that a wake-up during it leads to another one.
        self._woken = False
        began = time.monotonic()
        claimed, rooms = self._claim(rooms, free)
        tell(claim_made, self._host, node=self.node, duration=time.monotonic() - began, claimed=len(claimed))
        if claimed:
            self._contended = 0
            self.last_claim = time.monotonic()
        for task in claimed:
            tell(task_claimed, self._host, **facts(task, self.node))
            self._start(task)
        # Fewer than there were slots for: nothing else is due, as far as this node can take it.
        self._backlog = len(claimed) == free
        return 0 if self._backlog else self._sleep(rooms, quiet and not claimed)

    def _linger(self, free: int) -> float:
        """Return how long to wait for more free slots: of a backlog of short tasks, one claim for several is cheaper than one for each."""
        typical = self._slots.typical
        if self._lingering or not self._backlog or free >= self._slots.size // 2 or typical > _SHORT:
            self._lingering = False
            return 0.0
        self._lingering = True
        return typical / 2

    def _claim(self, rooms: Rooms, free: int) -> tuple[list[Claimed], Rooms]:
        if not self.cluster_limits:
            with self._line.statement() as connection:
                return self._database.dialect.claim(connection, self.node, rooms.open, free, self._low_water), rooms
        with self._line.transaction() as connection:
            return claim_limited(connection, self._database.dialect, self.node, rooms, self.cluster_limits, free, self._low_water)

    def _has_room_again(self, rooms: Rooms) -> bool:
        """Look, by the cheapest statements, whether a type that was at its cluster-wide limit has room."""
        with self._line.statement() as connection:
            still_full = within_cluster(connection, self._database.dialect, rooms, self._limits_seen).saturated
        return not self._full_at <= still_full

    def _sleep(self, rooms: Rooms, quiet: bool) -> float:
        """Return for how long nothing can be due that this node could take."""
        with self._line.statement() as connection:
            due = self._database.dialect.seconds_to_due(connection, [*rooms.open, *rooms.saturated], self._low_water)
        waits = [self._host.settings.poll_interval]
        if (everywhere_in := self._low_water.everywhere_in()) > 0:
            waits.append(everywhere_in)
        waits += [wait for wait in due.values() if wait > 0]
        overdue = {task_type for task_type, wait in due.items() if wait <= 0}
        if overdue & rooms.open.keys():
            waits.append(min(_CONTENDED[1], _CONTENDED[0] * 2**self._contended) * random.uniform(0.5, 1.0))
            self._contended = min(self._contended + 1, 10)
        if self.draining:
            waits.append(_DRAINING)
        self._limits_seen = rooms.limits
        self._full_at = overdue & rooms.saturated & self.cluster_limits.keys()
        self._types_wanted = frozenset(overdue & rooms.saturated)
        self._slot_wanted = self.draining
        if quiet and not overdue and everywhere_in == 0:
            self.drained.set()
        sleep = min(waits)
        self._next_full_round = time.monotonic() + sleep
        return min(sleep, SATURATED_RECHECK) if self._full_at else sleep

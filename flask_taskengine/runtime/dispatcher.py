"""Claims due tasks for the free slots and hands them over: a claimed task is a started task."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from ..domain.task import Claimed
from ..engine.claim import Rooms, claim_limited, rooms_here, within_cluster
from ..signals import emit, task_claimed
from .database import Database
from .loop import Loop
from .slots import Slots

SATURATED_RECHECK = 0.5
"""Seconds between looks at a cluster-wide limit while a type at its limit has due tasks."""
_CONTENDED = 0.02
"""Seconds to wait where something is due that another node is claiming at this moment."""

_logger = logging.getLogger("flask_taskengine")


class Dispatcher:
    """One thread: claim, hand over, sleep until something is due or somebody wakes it."""

    def __init__(self, database: Database, slots: Slots, start: Callable[[Claimed], None]) -> None:
        self._database = database
        self._host = database.host
        self._slots = slots
        self._start = start
        self._line = database.line()
        self._loop = Loop("dispatcher", self._run_once)
        self._only: frozenset[str] | None = None
        self._recheck: Rooms | None = None
        self.node = ""
        self.foreign: frozenset[str] = frozenset()
        """Types that no live node knows: claimed so that their tasks end."""
        self.drained = threading.Event()
        """Set while nothing is due and nothing runs."""
        self.held = threading.Event()
        """While set, nothing is claimed: the lease is lost or not yet taken."""

    def start(self, node: str, only: frozenset[str] | None) -> None:
        self.node = node
        self._only = only
        limits = {t: self._limits(t) for t in self.types()}
        self._per_node = {t: limit.per_node for t, limit in limits.items() if limit.per_node is not None}
        self._loop.start()

    def wake(self) -> None:
        self._recheck = None
        self._loop.wake()

    def slot_freed(self) -> None:
        """A slot is free: claim again if slots were what was missing."""
        self._loop.wake()

    def stop(self) -> None:
        """Claim nothing more; returns after the current claim has been handed over."""
        self._loop.stop()
        self._line.close()

    def types(self) -> frozenset[str]:
        """Return the types that this node processes."""
        known = frozenset(self._host.registry.types())
        return known if self._only is None else known & self._only

    def cluster_limits(self) -> dict[str, int]:
        """Return this node's own cluster-wide limits, which it writes into its row."""
        limits = {t: self._limits(t).cluster_wide for t in self.types()}
        return {t: limit for t, limit in limits.items() if limit is not None}

    def _limits(self, task_type: str) -> Limits:
        processor = self._host.registry.get(task_type)
        return self._host.settings.limits(task_type, processor.limits if processor else None)

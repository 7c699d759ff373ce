"""Finds the task types that no live node knows, so that their tasks end instead of waiting for ever."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..store import nodes
from .database import Database
from .dispatcher import Dispatcher
from .loop import Loop


class ForeignTypes:
    """One thread in every worker that compares the types which wait with those that live nodes process.

    A type that is overdue by ``UNKNOWN_TYPE_GRACE`` and known to nobody is claimed here, and fails, until somebody knows it or
    nothing of it has waited for that long.
    """

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._lease = database.host.settings.lease
        self._grace = database.host.settings.unknown_type_grace
        self._line = database.line()
        self._loop = Loop("unknown types", self._run_once)
        self._seen: dict[str, float] = {}

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        self._line.close()

    def _run_once(self) -> float:
        try:
            with self._line.statement() as connection:
                waiting = self._database.dialect.pending_types(connection)
                unknown = waiting.keys() - self._dispatcher.types()
                known = self._known(nodes.alive(connection, self._database.tables, self._lease)) if unknown or self._seen else frozenset()
        finally:
            # As the reaper: not kept from one round to the next.
            self._line.close()
        now = time.monotonic()
        overdue = {task_type for task_type in unknown if waiting[task_type] <= -self._grace}
        waits_on = waiting.keys() & self._seen.keys()
        self._seen |= dict.fromkeys(overdue | waits_on, now)
        # An attempt that fails just now waits no more and not yet again.
        self._seen = {task_type: seen for task_type, seen in self._seen.items() if task_type not in known and now - seen <= self._linger}
        if self._seen.keys() - self._dispatcher.foreign:
            self._dispatcher.foreign = frozenset(self._seen)
            self._dispatcher.wake()
        self._dispatcher.foreign = frozenset(self._seen)
        return self._interval

    @property
    def _interval(self) -> float:
        return min(30.0, max(0.5, self._grace / 4))

    @property
    def _linger(self) -> float:
        return max(self._grace, 2 * self._interval)

    def _known(self, alive: Sequence[Mapping[str, Any]]) -> frozenset[str]:
        return self._dispatcher.types().union(*(node["types"] for node in alive))

"""Says in the log when the queue suffers from something that a person can mend: once when it begins, once when it is over."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from ..domain.durations import roughly
from ..engine.claim import Rooms, within_cluster
from ..store.health import vital_warnings
from .database import Database
from .loop import Loop

INTERVAL = 60.0
"""Seconds from one look to the next."""
STUCK = 60.0
"""Seconds for which tasks may be due, and nothing claimed, while slots are free."""

_logger = logging.getLogger("flask_taskengine")


class HealthWatch:
    """One thread that looks once a minute, by a statement or two on a connection that it does not keep.

    Args:
        rooms: returns what this node could claim now; without anything it has no free slot.
        last_claim: returns when it has last claimed something, on the clock of ``time.monotonic``.
    """

    def __init__(self, database: Database, rooms: Callable[[], Rooms], last_claim: Callable[[], float]) -> None:
        self._database = database
        self._rooms = rooms
        self._last_claim = last_claim
        self._line = database.line()
        self._suffers: set[str] = set()
        self._loop = Loop("health watch", self._run_once)
        self._looked = False

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        self._line.close()

    def _run_once(self) -> float:
        if self._looked:
            self.look()
        self._looked = True
        return INTERVAL * random.uniform(0.9, 1.1)

    def look(self) -> None:
        """Look once, and log what has changed since the last time."""
        with self._line.statement() as connection:
            vitals = self._database.dialect.vitals(connection)
        self._tell("the health of the database", vital_warnings(vitals))
        self._tell("due tasks that are not claimed", self._stuck())
        self._line.close()

    def _stuck(self) -> list[str]:
        """Say whether tasks are due that this node could claim and does not."""
        rooms = self._rooms()
        if not rooms.open or time.monotonic() - self._last_claim() < STUCK:
            return []
        with self._line.statement() as connection:
            rooms = within_cluster(connection, self._database.dialect, rooms)
            waits = self._database.dialect.seconds_to_due(connection, list(rooms.open)) if rooms.open else {}
        overdue = {task_type: -wait for task_type, wait in waits.items() if wait <= -STUCK}
        if not overdue:
            return []
        late = f"{', '.join(sorted(overdue))} for {roughly(max(overdue.values()))}"
        remedy = "see whether an open transaction has locked them, and what `flask taskengine why` says of one"
        return [f"tasks are due, slots are free, and nothing was claimed ({late}): {remedy}"]

    def _tell(self, what: str, said: list[str]) -> None:
        if said and what not in self._suffers:
            self._suffers.add(what)
            for sentence in said:
                _logger.warning("%s", sentence)
        elif not said and what in self._suffers:
            self._suffers.remove(what)
            _logger.warning("%s: well again", what)

"""Extends the leases of nodes, and knows for how long that has worked without a gap."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from ..settings import Settings
from ..store import nodes
from .database import STATEMENT_DEADLINE, Database
from .loop import Loop
from .shared import SharedNumber


class Steadiness:
    """Since when every beat has succeeded, by the database's clock. Forked processes see what the one that beats writes.

    Only a worker that has been heard for a whole lease without a gap may call another node silent. Were the database away,
    or did its clock jump (a machine that slept wakes up), the others have had the time of a lease to beat again:
    a jump that fits into the largest gap makes no living node older than its lease.
    """

    def __init__(self, settings: Settings) -> None:
        self.largest_gap = max(settings.lease - settings.heartbeat_interval, 1.5 * settings.heartbeat_interval)
        """Seconds between two beats that still count as steady."""
        self._since = SharedNumber()
        self._last: datetime | None = None

    @property
    def since(self) -> datetime | None:
        """When the first of the beats happened that have all succeeded; None while there is no such row of them."""
        value = self._since.value
        return datetime.fromtimestamp(value, UTC) if value else None

    def note(self, now: datetime) -> None:
        """Note a beat that has succeeded, at the database's time."""
        if self._last is None or not 0 <= (now - self._last).total_seconds() <= self.largest_gap:
            self._since.value = now.timestamp()
        self._last = now

    def end(self) -> None:
        """Note a beat that has failed."""
        self._last = None
        self._since.value = 0.0


class Heartbeat:
    """One thread that beats for all nodes in one statement.

    While the database is silent nothing is concluded: the loop tries again, and the nodes' rows decide.

    Args:
        lost: called with each name whose lease is lost: its row is expired or gone.
        names: nodes to begin with.
    """

    def __init__(self, database: Database, steadiness: Steadiness, lost: Callable[[str], None], names: Iterable[str] = ()) -> None:
        settings = database.host.settings
        self._database = database
        self._steadiness = steadiness
        self._lost = lost
        self._names = set(names)
        self._lock = threading.Lock()
        self._interval = settings.heartbeat_interval
        # After one beat that hangs there must be time for another.
        self._deadline = min(STATEMENT_DEADLINE, max(0.5, (settings.lease - settings.heartbeat_interval) / 3))
        self._line = database.line()
        self._loop = Loop("heartbeat", self._run_once)

    def start(self) -> None:
        self._loop.start()

    def add(self, node: str) -> None:
        """Beat for a node, from now on."""
        with self._lock:
            self._names.add(node)
        self._loop.wake()

    def remove(self, node: str) -> bool:
        """Beat for a node no more; return whether it was beaten for."""
        with self._lock:
            known = node in self._names
            self._names.discard(node)
        return known

    def stop(self, timeout: float | None = None) -> bool:
        """Beat no more; return whether the thread has ended, so that its connection is closed."""
        ended = self._loop.stop(timeout)
        if ended:
            self._line.close()
        return ended

    def _run_once(self) -> float:
        began = time.monotonic()
        with self._lock:
            names = sorted(self._names)
        try:
            with self._line.statement(self._deadline) as connection:
                beaten = nodes.beat(connection, self._database.tables, names) if names else {}
                # Also without a node: a child that is replaced all the time must not keep the reaper from its work.
                now = max(beaten.values()) if beaten else nodes.now(connection)
        except BaseException:
            self._steadiness.end()
            raise
        self._steadiness.note(now)
        for name in names:
            if name not in beaten and self.remove(name):
                self._lost(name)
        return max(0.0, began + self._interval - time.monotonic())

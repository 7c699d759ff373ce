"""What the supervisor does in the database, in threads that never live while it forks."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from .completer import Completer
from .database import Database
from .heartbeat import Heartbeat, Steadiness
from .host import Host
from .loop import Loop
from .reaper import take_back
from .watchdog import Watchdog

_RETRY = 0.2
"""Seconds until the next try to take tasks from a node at whose rows another transaction is at work."""

_logger = logging.getLogger("flask_taskengine")


class Caretaker:
    """Beats for the children's nodes, and takes back the tasks of those that died.

    Args:
        lost: called, in a thread, with each node whose lease is lost.
    """

    def __init__(self, host: Host, label: str | None, lost: Callable[[str], None]) -> None:
        self._host = host
        self._label = label or socket.gethostname()
        self._lost_to = lost
        self.steadiness = Steadiness(host.settings)
        self._nodes: set[str] = set()
        self._dead: dict[str, str] = {}
        self._work: _Work | None = None

    def start(self) -> None:
        """Start the threads and open connections; there are none yet."""
        self._work = _Work(self._host, self._label, self.steadiness, self._lost, self._nodes, self._dead)

    def stop(self, timeout: float) -> bool:
        """End the threads and close the connections; return whether there are none left, so that the process may fork."""
        if self._work is not None and self._work.stop(timeout):
            self._work = None
        return self._work is None

    @property
    def busy(self) -> bool:
        """Whether tasks are still to be taken from processes that died."""
        return bool(self._dead)

    def joined(self, node: str) -> None:
        """Beat for a node."""
        self._nodes.add(node)
        if self._work is not None:
            self._work.heartbeat.add(node)

    def left(self, node: str) -> None:
        """Beat for a node no more: it has given its lease back."""
        self._nodes.discard(node)
        if self._work is not None:
            self._work.heartbeat.remove(node)

    def died(self, node: str, why: str) -> None:
        """End a node's lease and take its tasks back, now or once the database answers; ``why`` is a sentence for ``last_error``."""
        self.left(node)
        self._dead[node] = why
        if self._work is not None:
            self._work.takes_back.wake()

    def _lost(self, node: str) -> None:
        self._nodes.discard(node)
        self._lost_to(node)


class _Work:
    """One life of the threads."""

    def __init__(
        self, host: Host, label: str, steadiness: Steadiness, lost: Callable[[str], None], nodes: set[str], dead: dict[str, str]
    ) -> None:
        self._dead = dead
        self._watchdog = Watchdog()
        self._database = Database(host, self._watchdog)
        self._completer = Completer(self._database)
        self._completer.node = label
        self._line = self._database.line()
        self.heartbeat = Heartbeat(self._database, steadiness, lost, nodes)
        self.takes_back = Loop("taking back tasks", self._take_back)
        self._watchdog.start()
        self.heartbeat.start()
        self.takes_back.start()

    def stop(self, timeout: float) -> bool:
        """End the threads; a statement that hangs is given up by its deadline. May be called again."""
        if not (self.takes_back.stop(timeout) and self.heartbeat.stop(timeout)):
            return False
        self._watchdog.stop()
        self._line.close()
        self._database.close()
        return True

    def _take_back(self) -> float | None:
        for node, why in list(self._dead.items()):
            if self.takes_back.stopping:
                return None
            if take_back(self._database, self._line, self._completer, node, why, None):
                del self._dead[node]
        if self._dead:
            return _RETRY
        self._line.close()
        return None

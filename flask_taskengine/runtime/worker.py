"""One worker process's parts, put together: started in order, stopped in the opposite order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .completer import Completer
from .database import Database
from .dispatcher import Dispatcher
from .executor import Executor
from .host import Host
from .membership import Membership
from .notifier import Notifier
from .pool import ThreadPool
from .pruner import Pruner
from .rollcall import RollCall
from .slots import Slots
from .watchdog import Watchdog

_logger = logging.getLogger("flask_taskengine")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the command line says of a worker."""

    concurrency: int
    types: frozenset[str] | None = None
    """Only these types; None for all that the app knows."""
    label: str | None = None
    drain: bool = False
    """Work until nothing is due, then end."""


class Worker:
    """Claims and runs tasks in this process. Somebody else beats for it, and says so when its lease is lost.

    Args:
        joined: called with every name under which the node is registered, so that somebody beats for it.
    """

    def __init__(
        self, host: Host, options: WorkerOptions, joined: Callable[[str], None], executor_factory: Callable[[int], Any] | None = None
    ) -> None:
        self.host = host
        self.options = options
        self._joined_by = joined
        settings = host.settings
        self.watchdog = Watchdog()
        self.database = Database(host, self.watchdog)
        self.slots = Slots(options.concurrency, self._slot_freed)
        self.completer = Completer(self.database)
        self._pool = (executor_factory or ThreadPool)(options.concurrency)
        self.executor = Executor(self.database, self.completer, self.slots, self._pool)
        self.dispatcher = Dispatcher(self.database, self.slots, self.executor.start, options.types)
        self.rollcall = RollCall(self.database, self.executor, self.completer, settings.heartbeat_interval)
        self.notifier = Notifier(self.database, self.wake)
        self.pruner = Pruner(self.database, settings, lambda: self.dispatcher.node)
        self.membership = Membership(
            self.database,
            label=options.label,
            concurrency=options.concurrency,
            describe=lambda: (self.dispatcher.types(), self.dispatcher.cluster_limits),
            joined=self._joined,
        )
        self._stop_lock = threading.Lock()
        self._stopped = False

    def start(self) -> None:
        """Start every part; the first claim is made once the node is registered."""
        self.dispatcher.draining = self.options.drain
        self.watchdog.start()
        self.completer.start()
        self.membership.start()
        self.dispatcher.start()
        self.rollcall.start()
        self.notifier.start()
        self.pruner.start()

    def wake(self) -> None:
        """Look for due tasks and for cancel requests now."""
        self.dispatcher.wake()
        self.rollcall.wake()

    def node_lost(self, node: str) -> None:
        """Take note that the lease of a node's name is lost: its handlers are told, and the worker joins again."""
        if self.membership.id != node:
            return
        self.dispatcher.holding.clear()
        _logger.warning("node %s has lost its lease; its running tasks are void, the worker joins again", node)
        self.executor.lose()
        self.membership.lost(node)

    def stop(self, timeout: float | None = None) -> bool:
        """Claim nothing more, let running tasks end within one grace period, release the rest; return whether all was recorded.

        Args:
            timeout: seconds, by default ``SHUTDOWN_TIMEOUT``; no statement is issued after the return.
        """
        with self._stop_lock:
            if self._stopped:
                return True
            self._stopped = True
        self.dispatcher.stop()
        self.executor.stop(self.host.settings.shutdown_timeout if timeout is None else timeout)
        recorded = self.completer.stop(10.0)
        self.rollcall.stop()
        self.notifier.stop()
        self.pruner.stop()
        self._leave()
        self._pool.shutdown(wait=False)
        self.watchdog.stop()
        self.database.close()
        return recorded

    def _leave(self) -> None:
        try:
            self.membership.leave()
        except Exception as error:
            _logger.warning("the node's row could not be removed, it will expire: %s", error)

    def _joined(self, node: str) -> None:
        self.completer.node = self.dispatcher.node = self.rollcall.node = node
        self._joined_by(node)
        self.dispatcher.holding.set()
        self.dispatcher.wake()

    def _slot_freed(self, task_type: str) -> None:
        self.dispatcher.slot_freed(task_type)

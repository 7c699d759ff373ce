"""One worker process's parts, put together: started in order, stopped in the opposite order."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..signals import node_joined, node_left, node_lost
from .completer import Completer
from .database import Database
from .dispatcher import Dispatcher
from .events import tell
from .executor import Executor
from .foreign import ForeignTypes
from .healthwatch import HealthWatch
from .heartbeat import Heartbeat, Steadiness
from .host import Host
from .isolation import Isolation, can_not_isolate, isolated_types
from .membership import Membership
from .notifier import Notifier
from .pool import ThreadPool
from .progress import ProgressBoard
from .pruner import Pruner
from .reaper import Reaper
from .rollcall import RollCall
from .scheduler import Scheduler
from .slots import Slots
from .watchdog import Watchdog

_RECORD_WITHIN = 10.0
"""Seconds that a worker which stops waits for the ends of its attempts to be recorded."""

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

    def in_words(self, host: Host, processes: int = 1) -> str:
        """Return who works where on what, in a line without secrets."""
        # The query of an address may hold secrets, too.
        address = host.sql_engine().url.set(query={}).render_as_string(hide_password=True)
        types = ", ".join(sorted(self.types or host.registry.types())) or "no types"
        each = f"{self.concurrency} tasks at once" if processes == 1 else f"{processes} processes of {self.concurrency} tasks at once"
        return f"worker {self.label or socket.gethostname()} (pid {os.getpid()}) on {address}: {types}; {each}"


class Worker:
    """Claims and runs tasks in this process. Lives once: start, then stop.

    Somebody beats for it and says so when its lease is lost: the supervisor, or after ``beat_itself`` a thread of its own.

    Args:
        joined: called with every name under which the node is registered, so that somebody beats for it.
        executor_factory: makes the pool in which handlers run, given the number of slots.
        left: called with the current name when the node is about to leave, so that nobody beats for it any more.
        steadiness: what the one that beats knows of its beats; without it, and without ``beat_itself``, the reaper does nothing.
        isolation: from ``start_isolation``, called before this process had threads; the worker ends it.

    Raises:
        ConfigError: a type needs a process of its own, and there is no ``isolation``.
    """

    def __init__(
        self,
        host: Host,
        options: WorkerOptions,
        joined: Callable[[str], None] | None = None,
        executor_factory: Callable[[int], Any] | None = None,
        *,
        left: Callable[[str], None] | None = None,
        steadiness: Steadiness | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        apart = isolated_types(host, options.types)
        if apart and isolation is None:
            raise can_not_isolate(apart)
        self.host = host
        self.options = options
        self._tell_joined, self._tell_left = joined, left
        self._steadiness = steadiness or Steadiness(host.settings)
        self._heartbeat: Heartbeat | None = None
        self._node: str | None = None
        self.watchdog = Watchdog()
        self.database = Database(host, self.watchdog)
        self.slots = Slots(options.concurrency, self._slot_freed)
        self.completer = Completer(self.database)
        self._pool = (executor_factory or ThreadPool)(options.concurrency)
        self._isolation = isolation
        self.executor = Executor(self.database, self.completer, self.slots, self._pool, options.types, isolation)
        self.dispatcher = Dispatcher(self.database, self.slots, self.executor.start, options.types)
        self.dispatcher.recorded = lambda: not self.completer.waiting and self.scheduler.nothing_due.is_set()
        self.progress = ProgressBoard(self.database)
        self.executor.on_progress = self.progress.report
        self.rollcall = RollCall(self.database, self.executor, self.completer, host.settings.heartbeat_interval)
        self.scheduler = Scheduler(self.database, self.dispatcher.types, self.dispatcher.wake)
        self.executor.may_begin = self.scheduler.may_begin
        self.completer.occurrence_ended = self.scheduler.look
        self.notifier = Notifier(self.database, self.wake)
        self.reaper = Reaper(self.database, self.completer, self._steadiness)
        self.foreign = ForeignTypes(self.database, self.dispatcher)
        self.pruner = Pruner(self.database, host.settings, lambda: self.dispatcher.node)
        self.health = HealthWatch(self.database, lambda: self.dispatcher.rooms(self.slots.free), lambda: self.dispatcher.last_claim)
        self.membership = Membership(
            self.database,
            label=options.label,
            concurrency=options.concurrency,
            describe=lambda: (self.dispatcher.types(), self.dispatcher.limits),
            joined=self._joined,
        )
        self._stop_lock = threading.RLock()
        self._stopping = False
        self._recorded = True

    def start(self) -> None:
        """Start every part; the first claim is made once the node is registered."""
        self.dispatcher.draining = self.options.drain
        self.watchdog.start()
        self.completer.start()
        self.membership.start()
        for part in (self.dispatcher, self.rollcall, self.scheduler, self.notifier, self.reaper, self.foreign, self.pruner, self.health):
            part.start()

    def beat_itself(self) -> None:
        """Beat for this worker's nodes from a thread of its own; before ``start``, or when the one that beat has died."""
        self._heartbeat = Heartbeat(self.database, self._steadiness, self.node_lost)
        if self._node is not None:
            self._heartbeat.add(self._node)
        self._heartbeat.start()

    def wake(self) -> None:
        """Look for due tasks and for cancel requests now."""
        self.dispatcher.wake()
        self.rollcall.wake()
        self.scheduler.nudge()

    def drained(self) -> bool:
        """Say whether a worker that drains has found nothing due while nothing ran and every end was recorded."""
        return self.dispatcher.drained.is_set()

    def node_lost(self, node: str) -> None:
        """Take note that the lease of a node's name is lost: its handlers are told, and the worker joins again."""
        if self.membership.id != node:
            return
        self.dispatcher.holding.clear()
        self.executor.lose()
        tell(node_lost, self.host, node=node)
        if self._stopping:
            _logger.warning("node %s has lost its lease while it stops; its running tasks are void", node)
            return
        _logger.warning("node %s has lost its lease; its running tasks are void, the worker joins again", node)
        self.membership.lost(node)

    def stop(self, timeout: float | None = None) -> bool:
        """Claim nothing more, let running tasks end within one grace period, release the rest; return whether all was recorded.

        Called again, also from another thread, it returns the same once everything has stopped.

        Args:
            timeout: seconds, by default ``SHUTDOWN_TIMEOUT``; no statement is issued after the return, but by threads given up.
        """
        with self._stop_lock:
            if not self._stopping:
                self._stopping = True
                self._recorded = self._stop(self.host.settings.shutdown_timeout if timeout is None else timeout)
            return self._recorded

    def hurry(self, timeout: float) -> None:
        """Let ``stop`` give running tasks no longer than ``timeout`` seconds from now."""
        self.executor.hurry(timeout)

    def _stop(self, timeout: float) -> bool:
        self.scheduler.stop()
        self.dispatcher.stop()
        self.executor.stop(timeout)
        if self._isolation is not None:
            self._isolation.stop()
        self.progress.stop()
        recorded = self.completer.stop(_RECORD_WITHIN)
        for part in (self.health, self.pruner, self.foreign, self.reaper, self.notifier, self.rollcall):
            part.stop()
        self.scheduler.close()
        if recorded:
            self._leave()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if isinstance(self._pool, ThreadPool):
            self._pool.shutdown(timeout=1.0)
        else:
            # It may hold threads that were given up.
            self._pool.shutdown(wait=False)
        self.host.reactions.settle(_RECORD_WITHIN)
        if self.host.tracing is not None:
            self.host.tracing.flush(_RECORD_WITHIN)
        self.watchdog.stop()
        self.database.close()
        return recorded

    def _leave(self) -> None:
        """Give the lease back; a node with unrecorded ends keeps it until it runs out, or until the supervisor takes it back."""
        if self._node is not None and self._tell_left is not None:
            self._tell_left(self._node)
        if self._node is not None and self._heartbeat is not None:
            self._heartbeat.remove(self._node)
        try:
            self.membership.leave()
        except Exception as error:
            _logger.warning("the node's row could not be removed, it will expire: %s", error)
        if self._node is not None:
            tell(node_left, self.host, node=self._node)

    def _joined(self, node: str) -> None:
        self._node = self.completer.node = self.dispatcher.node = self.rollcall.node = self.reaper.node = node
        if self._heartbeat is not None:
            self._heartbeat.add(node)
        if self._tell_joined is not None:
            self._tell_joined(node)
        self.scheduler.join(node)
        tell(node_joined, self.host, node=node, label=self.membership.label, concurrency=self.options.concurrency)
        self.dispatcher.holding.set()
        self.dispatcher.wake()

    def _slot_freed(self, task_type: str) -> None:
        self.dispatcher.slot_freed(task_type)

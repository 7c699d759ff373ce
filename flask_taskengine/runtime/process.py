"""What a child of the supervisor does: runs one worker until it is told to stop, is worn out, or has drained."""

from __future__ import annotations

import logging
import math
import os
import resource
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..signals import task_claimed
from .channel import Channel
from .children import Vitals
from .database import keep_connections
from .forked import HELD_AT_FORK, exit_forked, forget_connections, signal_when_parent_dies
from .heartbeat import Steadiness
from .host import Host
from .inbox import Inbox
from .isolation import Isolation
from .lookout import Show
from .relay import Told
from .worker import Worker, WorkerOptions
from .zygote import start_isolation

_TICK = 0.5
_LOOK = 0.5
_LOOK_OFTEN = 0.05

_logger = logging.getLogger("flask_taskengine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every child is to do."""

    options: WorkerOptions
    max_tasks: int | None = None
    """Tasks after which another process takes its place."""
    max_memory: int | None = None
    """Resident bytes above which another process takes its place."""
    executor_factory: Callable[[int], Any] | None = None
    show: Show | None = None
    """What is shown to the outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What a child is given by its supervisor."""

    channel: Channel
    vitals: Vitals
    steadiness: Steadiness
    supervisor: int
    """The process id of the one that forks."""


def become_child(host: Host, plan: Plan, birth: Birth, begin: Iterable[Callable[[], None]]) -> NoReturn:
    """Run a child to its end, right after the fork; never returns into the code that forked.

    Args:
        begin: close what belongs to the supervisor alone, and what else comes first.
    """
    code = 1
    try:
        for step in begin:
            step()
        inbox = Inbox(signal.SIGTERM)
        inbox.install()
        # Ctrl-C reaches the whole group: the supervisor decides what it means. A handler, since SIG_IGN would be inherited by
        # every program that a task starts.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_AT_FORK)
        if not signal_when_parent_dies(signal.SIGTERM, birth.supervisor):
            os.kill(os.getpid(), signal.SIGTERM)
        forget_connections(host)
        keep_connections(host, plan.options.concurrency)
        # Before the first thread.
        isolation = start_isolation(host, plan.options.types, (birth.channel, inbox))
        code = _Process(host, plan, birth, inbox, isolation).run()
    except BaseException:
        _logger.exception("the worker process %d failed", os.getpid())
    finally:
        exit_forked(code)


class _Process:
    """The main thread of a child: it only listens, all work is done by the worker's threads."""

    def __init__(self, host: Host, plan: Plan, birth: Birth, inbox: Inbox, isolation: Isolation | None) -> None:
        self._plan = plan
        self._isolation = isolation
        self._told = Told(host)
        self._patience = host.settings.shutdown_timeout
        self._channel = birth.channel
        self._vitals = birth.vitals
        self._inbox = inbox
        self._worker = Worker(
            host,
            plan.options,
            lambda node: self._channel.send(joined=node),
            plan.executor_factory,
            left=lambda node: self._channel.send(left=node),
            steadiness=birth.steadiness,
            isolation=isolation,
        )
        if isolation is not None:
            isolation.on_lost = self._claim_no_more
        self._worker.executor.on_start = self._write_deadline
        self._selector = selectors.DefaultSelector()
        self._claimed = 0
        self._ready = False
        self._stopping = False
        self._stopped = threading.Event()

    def run(self) -> int:
        self._selector.register(self._inbox, selectors.EVENT_READ)
        self._selector.register(self._channel, selectors.EVENT_READ)
        if self._plan.max_tasks is not None or self._plan.max_memory is not None:
            task_claimed.connect(self._count, self._worker.host.sender)
        self._worker.start()
        self._tick()
        while not self._stopped.is_set():
            self._selector.select(_LOOK if self._ready and not self._plan.options.drain else _LOOK_OFTEN)
            if signal.SIGTERM in self._inbox.take():
                self._stop(self._patience)
            self._hear()
            self._look()
        return 0

    def _hear(self) -> None:
        messages = self._channel.receive()
        self._told.announce([message["event"] for message in messages if "event" in message])
        for message in messages:
            match message:
                case {"lost": node}:
                    self._worker.node_lost(node)
                case {"stop": _}:
                    self._stop(self._patience)
                case {"force": _}:
                    self._stop(0)
                case _:
                    pass
        if self._channel.ended and self._channel in self._selector.get_map():
            self._selector.unregister(self._channel)
            _logger.warning("the supervisor of process %d has died: the process stops", os.getpid())
            # Running tasks keep their lease until they have ended.
            self._worker.beat_itself()
            self._stop(self._patience)

    def _look(self) -> None:
        if not self._ready and self._worker.membership.registered.is_set() and self._worker.notifier.settled:
            self._ready = True
            self._channel.send(ready=self._worker.notifier.mode)
        if self._stopping:
            return
        if self._plan.options.drain and self._worker.dispatcher.drained.is_set():
            self._stop(math.inf)
        elif (why := self._worn_out()) is not None:
            self._channel.send(retire=why, tasks=self._claimed)
            self._stop(math.inf)

    def _stop(self, timeout: float) -> None:
        self._worker.hurry(timeout)
        if not self._stopping:
            self._stopping = True
            # In a thread of its own, so that this one still hears that there is less time.
            threading.Thread(target=self._stop_worker, name="taskengine-stop", daemon=True).start()

    def _stop_worker(self) -> None:
        try:
            self._worker.stop(math.inf)
        finally:
            self._stopped.set()
            self._inbox.wake()

    def _worn_out(self) -> str | None:
        plan, abandoned = self._plan, self._worker.executor.abandoned
        if plan.max_tasks is not None and self._claimed >= plan.max_tasks:
            return f"it has run {self._claimed} tasks"
        if abandoned >= plan.options.concurrency:
            self._claimed = max(self._claimed, abandoned)
            return f"{abandoned} of its threads did not come back from their tasks"
        if self._isolation is not None and self._isolation.lost:
            return "the process that starts isolated attempts has died"
        if plan.max_memory is not None and (memory := resident_memory()) > plan.max_memory:
            return f"it has grown to {memory / 2**20:.0f} MiB"
        return None

    def _count(self, sender: Any, **fields: Any) -> None:
        self._claimed += 1
        if self._plan.max_tasks is not None and self._claimed >= self._plan.max_tasks:
            self._claim_no_more()

    def _claim_no_more(self) -> None:
        self._worker.dispatcher.holding.clear()
        self._inbox.wake()

    # --- signs of life ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._write_deadline()
        self._vitals.tick.value = time.monotonic()
        self._worker.watchdog.watch(_TICK, self._tick)

    def _write_deadline(self) -> None:
        self._vitals.deadline.value = self._worker.executor.earliest_deadline()


def resident_memory() -> int:
    """Return the bytes of memory that this process has now; where that is not known, the most it has ever had."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024

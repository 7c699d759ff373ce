"""Enqueues the occurrences of schedules when they are due. Every worker has one: whoever comes first does it, and only once."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa

from ..domain.errors import TaskEngineError
from ..domain.occurrence import occurrence_of
from ..domain.task import Claimed
from ..engine import occasion, recurring
from ..engine.declare import declare
from ..engine.schedule_context import ScheduleContext
from ..signals import schedule_missed, task_enqueued
from ..store import schedules
from .database import Database
from .events import tell
from .loop import Loop

PAGE = 100
"""Schedules per transaction."""
_NUDGE_EVERY = 0.5
"""Seconds between two looks that are due to wake-ups, of which most are about other tasks."""
_OTHERS_FIRST = (0.05, 0.3)
"""Seconds that a node waits beyond the time where another one was first the last time, so that not all come at once."""
_CONTENDED = (0.005, 0.5)
"""Seconds, growing from the first to the second, to wait where something is due that can not be begun."""
_DECLARE_EVERY = 15.0
_SHORTEST_POLL = 0.1

_logger = logging.getLogger("flask_taskengine")


class Scheduler:
    """One thread: enqueue what is due, sleep until the next time.

    Args:
        types: returns the types that this node processes.
        enqueued: called when there is a task to claim.
    """

    def __init__(self, database: Database, types: Callable[[], frozenset[str]], enqueued: Callable[[], None]) -> None:
        self._database = database
        self._host = database.host
        self._types = types
        self._enqueued = enqueued
        self._line = database.line()
        self._loop = Loop("scheduler", self._run_once)
        self._starts = database.line()
        self._starting = threading.Lock()
        self._node = ""
        self._declare_at = 0.0
        self._free_at = 0.0
        self._first = True
        """Whether this node begins occurrences at once."""
        self._unreadable: set[str] = set()
        self._ends = 0
        self._contended = 0
        self._looked = 0.0
        self._nudged = False
        self.nothing_due = threading.Event()
        """Cleared while something that has ended here may make the next occurrence due."""

    def start(self) -> None:
        self._loop.start()

    def join(self, node: str) -> None:
        """Work under this name of the node."""
        self._node = node
        self._declare_at = 0.0
        self._loop.wake()

    def look(self) -> None:
        """Look now: an occurrence has ended here."""
        self._first = True
        self._ends += 1
        self.nothing_due.clear()
        self._loop.wake()

    def nudge(self) -> None:
        """Look soon: something has changed, perhaps a schedule."""
        wait = self._looked + _NUDGE_EVERY - time.monotonic()
        if wait <= 0:
            self._loop.wake()
        elif not self._nudged:
            self._nudged = True
            self._database.watchdog.watch(wait, self._loop.wake)

    def stop(self) -> None:
        """Enqueue nothing more; occurrences that have begun may still ask whether they may run."""
        self._loop.stop()
        self._line.close()

    def close(self) -> None:
        """Close the last connection."""
        self._starts.close()

    def may_begin(self, task: Claimed) -> ScheduleContext | None:
        """Return what the handler of an occurrence is told; ``None`` for any other task.

        Raises:
            Snooze: another occurrence of the schedule has not ended.
            Reject: the schedule was removed.
        """
        if occurrence_of(task.idempotency_key) is None:
            return None
        with self._starting, self._starts.statement() as connection:
            return occasion.may_begin(connection, self._database.tables, task)

    # --- one round ----------------------------------------------------------------------------------------------------

    def _run_once(self) -> float | None:
        if not self._node:
            return None
        self._nudged, self._looked = False, time.monotonic()
        ends = self._ends
        self._declare()
        served = self._served()
        self._free_ended(served)
        with self._line.statement() as connection:
            wait = schedules.seconds_to_next(connection, self._database.tables, served)
        if wait is None or wait > 0:
            self._contended = 0
            if ends == self._ends:
                self.nothing_due.set()
            return self._sleep(wait)
        return 0 if self._begin(served) else self._contention()

    def _declare(self) -> None:
        now = time.monotonic()
        if now < self._declare_at:
            return
        declared = {name: one for name, one in self._host.schedules.items() if name in self._types()}
        with self._line.transaction() as connection:
            faults = declare(connection, self._database.dialect, declared, self._node, self._host.settings.lease)
        for fault in faults:
            _logger.error("%s", fault)
        self._unreadable.clear()
        self._declare_at = now + _DECLARE_EVERY

    def _served(self) -> sa.ColumnElement[bool]:
        types = self._types()
        served = schedules.ours(self._database.tables, types, self._host.schedules.keys() & types)
        return sa.and_(served, self._database.tables.schedule.c.name.not_in(self._unreadable))

    def _free_ended(self, served: sa.ColumnElement[bool]) -> None:
        """Look for occurrences that did not end by a run, which would have told their schedule."""
        now = time.monotonic()
        if now < self._free_at:
            return
        with self._line.statement() as connection:
            ended = schedules.unnoticed(connection, self._database.tables, served, PAGE)
        for name in ended:
            try:
                with self._line.transaction() as connection:
                    recurring.free(connection, self._database.dialect, name)
            except TaskEngineError as error:
                _logger.warning("schedule %r does not go on: %s", name, error)
        self._free_at = now + self._host.settings.poll_interval

    def _begin(self, served: sa.ColumnElement[bool]) -> bool:
        """Enqueue what is due; return whether there was anything."""
        begun: list[recurring.Begun] = []
        try:
            with self._line.transaction() as connection:
                begun = recurring.begin_due(connection, self._database.dialect, served, PAGE, self._unreadable)
        except recurring.Raced:
            _logger.debug("another node was first")
        self._first = bool(begun)
        for one in begun:
            self._announce(one)
        if any(one.enqueued for one in begun):
            self._enqueued()
        return bool(begun)

    def _announce(self, begun: recurring.Begun) -> None:
        if begun.enqueued is not None and begun.enqueued.created:
            tell(task_enqueued, self._host, task_id=begun.enqueued.id, task_type=begun.row.type)
        if begun.plan.missed is not None:
            first, until = begun.plan.missed
            tell(schedule_missed, self._host, schedule=begun.row.name, first=first, until=until, policy=begun.policy)

    def _sleep(self, wait: float | None) -> float:
        poll = max(_SHORTEST_POLL, self._host.settings.poll_interval)
        if wait is None:
            return poll
        return min(poll, wait if self._first else wait + random.uniform(*_OTHERS_FIRST))

    def _contention(self) -> float:
        wait: float = min(_CONTENDED[1], _CONTENDED[0] * 2**self._contended)
        self._contended = min(self._contended + 1, 10)
        return wait * random.uniform(0.5, 1.0)

"""Records how attempts ended: successes grouped into one statement, everything else one by one."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from ..domain.occurrence import OccurrenceEnd
from ..domain.outcome import Ending, Failure, Outcome, Raised, Returned, TimedOut, Verdict, decide
from ..domain.states import TaskStatus
from ..domain.task import Claimed
from ..engine.occasion import Held, decide_occurrence, end_occurrence, hold
from ..engine.schedule_context import ScheduleContext
from ..signals import (
    schedule_crashed,
    schedule_finished,
    task_cancelled,
    task_dead,
    task_failed,
    task_lease_lost,
    task_requeued,
    task_retried,
    task_succeeded,
    task_timed_out,
)
from ..store import tasks
from ..store.schedules import ScheduleLocked
from .database import STATEMENT_DEADLINE, Database
from .events import facts, occurrence_facts, tell
from .loop import Loop

_GROUP = 500
_LOCKED = 0.05
"""Seconds to wait where all that is left to record are occurrences of schedules that other transactions have locked."""
_logger = logging.getLogger("flask_taskengine")


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt whose end is to be recorded."""

    task: Claimed
    ending: Ending
    duration: float
    """Seconds that the handler took."""
    schedule: ScheduleContext | None = None
    """Of an occurrence that has run here."""


class Completer:
    """One thread that writes the ends of attempts; nothing that was given to it is lost while the process lives."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._host = database.host
        self.node = ""
        self._line = database.line()
        self._waiting: deque[Ended] = deque()
        self._changed = threading.Condition()
        self._loop = Loop("completer", self._run_once)
        self._rng = random.Random()
        self.occurrence_ended: Callable[[], None] = lambda: None
        """Called when the end of an occurrence is recorded: the next one may be due."""

    def start(self) -> None:
        self._loop.start()

    def stop(self, timeout: float) -> bool:
        """Record what is waiting, at most for ``timeout`` seconds; return whether all was recorded."""
        with self._changed:
            recorded = self._changed.wait_for(lambda: not self._waiting, timeout)
        # A statement that hangs is given up by then.
        if self._loop.stop(STATEMENT_DEADLINE + 1.0):
            self._line.close()
        return recorded

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def holds(self, task_id: int, claims: int) -> bool:
        """Say whether the end of this attempt is still to be recorded."""
        return any(ended.task.id == task_id and ended.task.claims == claims for ended in tuple(self._waiting))

    def put(self, ended: Ended) -> None:
        with self._changed:
            self._waiting.append(ended)
        self._loop.wake()

    # --- grouped ------------------------------------------------------------------------------------------------------

    def _run_once(self) -> float | None:
        while self._waiting:
            group = [self._waiting[i] for i in range(min(len(self._waiting), _GROUP))]
            if not self._record(group):
                return _LOCKED
        return None

    def _record(self, group: list[Ended]) -> bool:
        """Record what can be recorded; return whether there was any."""
        any_recorded = False
        simple = [e for e in group if isinstance(e.ending, Returned) and e.schedule is None] if self._keeps_succeeded else []
        succeeded = self._complete(simple) if simple else set()
        for ended in group:
            if ended.task.id in succeeded:
                self.announce(ended, Outcome(Verdict.SUCCEEDED, TaskStatus.SUCCEEDED))
            else:
                try:
                    outcome = self._settle_surely(ended)
                except ScheduleLocked:
                    self._waiting.rotate(-1)
                    continue
                except Exception:
                    # Tried again after the others: one that the database refuses must not stand in their way.
                    self._waiting.rotate(-1)
                    raise
                self.announce(ended, outcome)
            # One by one: were the next to fail, this one must not be recorded and announced again.
            any_recorded = True
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()
        return any_recorded

    @property
    def _keeps_succeeded(self) -> bool:
        return self._host.settings.retention.succeeded != 0

    def _complete(self, group: list[Ended]) -> set[int]:
        rows = [(e.task.id, e.task.claims, e.ending.result) for e in group if isinstance(e.ending, Returned)]
        try:
            with self._line.transaction() as connection:
                return self._database.dialect.complete_many(connection, rows)
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated or isinstance(error, sa.exc.OperationalError):
                raise
            _logger.warning("a group of %d completions was refused, they are recorded one by one: %s", len(group), error.orig)
            return set()

    # --- one by one ---------------------------------------------------------------------------------------------------

    def _settle_surely(self, ended: Ended) -> Outcome | None:
        try:
            with self._line.transaction() as connection:
                return self.settle(connection, ended, patient=False)
        except sa.exc.DataError as error:
            failure = Failure("DataError", f"the end of this attempt could not be stored: {type(error.orig).__name__}")
            with self._line.transaction() as connection:
                return self.settle(connection, replace(ended, ending=Raised(failure)), patient=False)

    def settle(self, connection: sa.Connection, ended: Ended, node: str | None = None, *, patient: bool = True) -> Outcome | None:
        """Record the end of one attempt in the caller's transaction; None where the attempt has lost the task.

        The row is asked for a cancel request only where writing without one has failed.

        Args:
            node: the one that ran it; by default this one.
            patient: wait for a transaction that has locked the schedule of an occurrence; else raise ``ScheduleLocked``.
        """
        tables, task = self._database.tables, ended.task
        occurrence = hold(connection, tables, task, ended.schedule, patient=patient)
        for cancel_requested in (False, True):
            outcome = self.decide(task, ended.ending, cancel_requested, occurrence)
            if self._write(connection, task, outcome):
                if occurrence is not None:
                    outcome = end_occurrence(connection, self._database.dialect, occurrence, task, outcome)
                if outcome.failure is not None:
                    tasks.record_attempt(connection, tables, task, node or self.node, outcome.failure)
                return outcome
            held = tasks.holding(connection, tables, task.id)
            if held is None or held[0] != task.claims:
                return None
            if held[1] is TaskStatus.SUCCEEDED:
                # Written before by this attempt, whose connection broke while it committed.
                return Outcome(Verdict.SUCCEEDED, TaskStatus.SUCCEEDED)
            if held[1] is not TaskStatus.RUNNING:
                return outcome if held[1] is outcome.status else None
        return None

    def decide(self, task: Claimed, ending: Ending, cancel_requested: bool, occurrence: Held | None = None) -> Outcome:
        """Ask what becomes of the task."""
        processor = self._host.registry.get(task.type)
        policy = self._host.settings.retry_policy(task.type, processor.retry if processor else None)
        if occurrence is not None:
            return decide_occurrence(occurrence, task, ending, own=policy, cancel_requested=cancel_requested, rng=self._rng)
        return decide(
            ending,
            attempts=task.attempts,
            max_attempts=task.max_attempts,
            policy=policy,
            cancel_requested=cancel_requested,
            rng=self._rng,
        )

    def _write(self, connection: sa.Connection, task: Claimed, outcome: Outcome) -> bool:
        if outcome.status is TaskStatus.SUCCEEDED:
            if self._keeps_succeeded:
                return self._database.dialect.complete(connection, task.id, task.claims, outcome.result)
            return tasks.complete_and_delete(connection, self._database.tables, task.id, task.claims)
        return tasks.finish(connection, self._database.tables, task.id, task.claims, outcome)

    # --- events -------------------------------------------------------------------------------------------------------

    def announce(self, ended: Ended, outcome: Outcome | None) -> None:
        """Say what was recorded, after the commit; None says that the attempt had lost the task."""
        common = facts(ended.task, self.node)
        if isinstance(ended.ending, TimedOut):
            tell(task_timed_out, self._host, **common, timeout=ended.ending.timeout)
        if outcome is None:
            tell(task_lease_lost, self._host, **common, duration=ended.duration)
            return
        self._announce_task(ended, outcome, common)
        if outcome.occurrence is not None:
            self._announce_occurrence(ended, outcome, outcome.occurrence)

    def _announce_task(self, ended: Ended, outcome: Outcome, common: dict[str, Any]) -> None:
        match outcome.verdict:
            case Verdict.SUCCEEDED:
                tell(task_succeeded, self._host, **common, duration=ended.duration)
            case Verdict.CANCELLED:
                tell(task_cancelled, self._host, **common, duration=ended.duration)
            case Verdict.SNOOZED | Verdict.RELEASED:
                tell(task_requeued, self._host, **common, reason=outcome.verdict.value, duration=ended.duration)
            case Verdict.RETRIED:
                tell(task_retried, self._host, **common, duration=ended.duration, failure=outcome.failure, delay=outcome.delay)
            case Verdict.FAILED:
                tell(task_failed, self._host, **common, duration=ended.duration, failure=outcome.failure)
            case Verdict.DEAD:
                tell(task_dead, self._host, **common, duration=ended.duration, failure=outcome.failure)

    def _announce_occurrence(self, ended: Ended, outcome: Outcome, end: OccurrenceEnd) -> None:
        common = occurrence_facts(ended.task, self.node, end.occurrence.name, end.occurrence.scheduled_at)
        common |= {"duration": ended.duration, "next_at": end.next_at}
        match outcome.verdict:
            case Verdict.SUCCEEDED:
                tell(schedule_finished, self._host, **common)
            case Verdict.RETRIED | Verdict.FAILED | Verdict.DEAD | Verdict.CANCELLED:
                retried = outcome.verdict is Verdict.RETRIED
                tell(schedule_crashed, self._host, **common, failure=outcome.failure, retried=retried)
            case _:
                pass
        self.occurrence_ended()

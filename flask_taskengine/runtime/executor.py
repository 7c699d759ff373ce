"""Runs one claimed task: its own app context, session and transaction, and an end that is always recorded."""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from typing import Any

import sqlalchemy as sa

from ..domain.errors import (
    LeaseLostError,
    PayloadError,
    Reject,
    Retry,
    Snooze,
    TaskCancelled,
    TaskEngineError,
    TaskInterrupt,
    TaskTimedOut,
    WorkerStopping,
)
from ..domain.outcome import Ending, Interrupted, Raised, Rejected, Returned, Snoozed, TimedOut
from ..domain.task import Claimed, Unreadable
from ..engine import outbox
from ..engine.context import TaskContext, running
from ..engine.failures import failure_from
from ..engine.payload import dump_result
from ..engine.registry import Processor
from ..engine.schedule_context import ScheduleContext
from ..signals import schedule_started, task_started
from .completer import Completer, Ended
from .database import STATEMENT_DEADLINE, Database
from .events import facts, occurrence_facts, tell
from .isolation import IsolatedRun, Isolation, Recorded
from .pool import ThreadPool
from .run import Run, current, ending_of_interrupt
from .runs import Runs
from .sessions import used_session
from .slots import Slots

ABANDON_AFTER = 1.0
"""Seconds that an interrupted handler has to end before its thread is given up."""
CANCEL_GRACE = 2.0
"""Seconds that a handler has to notice ``context.cancelled`` before it is interrupted."""
_LONGEST_END = STATEMENT_DEADLINE + 5.0
"""Seconds within which an interrupted attempt has ended: a commit that hangs is given up before."""

_logger = logging.getLogger("flask_taskengine")


class _Lost(Exception):
    """The attempt no longer holds its task: nothing is to be recorded."""


class _Unreadable(Exception):
    """The payload can not be read; the cause says why."""


class Executor:
    """Hands claimed tasks to threads and sees each to its end."""

    def __init__(
        self,
        database: Database,
        completer: Completer,
        slots: Slots,
        pool: Any,
        only: frozenset[str] | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        self._database = database
        self._isolation = isolation
        self._host = database.host
        self._completer = completer
        self._slots = slots
        self._pool = pool
        self._only = only
        self._runs = Runs()
        self._stop_by = math.inf
        self.abandoned = 0
        self.on_start: Callable[[], None] = _nothing
        """Called before a task is handed to its thread."""
        self.on_progress: Callable[[int, int, float, float | None, str | None], None] | None = None
        """Takes what handlers say of how far they are."""
        self.may_begin: Callable[[Claimed], ScheduleContext | None] = lambda _: None
        """Asked before each run: the occurrences of a schedule run one at a time."""

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self, task: Claimed) -> None:
        """Run a claimed task in the next free thread."""
        processor = self._host.registry.get(task.type) if self._only is None or task.type in self._only else None
        timeout = self._host.settings.timeout_for(task.type, processor.timeout if processor else ...)
        run = self._new_run(task, self._context(task, processor, timeout), processor)
        self._runs.add(run)
        self._slots.take(task.type)
        self.on_start()
        # With context variables of its own: what a handler or a trace sets is gone when it ends.
        self._pool.submit(Context().run, self._run, run, processor, timeout)

    def _new_run(self, task: Claimed, context: TaskContext, processor: Processor | None) -> Run:
        apart = processor is not None and processor.isolation == "process" and not isinstance(task.payload, Unreadable)
        if self._isolation is None or not apart:
            return Run(self._host, task, context)
        return IsolatedRun(self._host, task, context, self._isolation)

    def _context(self, task: Claimed, processor: Processor | None, timeout: float | None) -> TaskContext:
        limit = task.max_attempts
        if limit is None:
            limit = self._host.settings.retry_policy(task.type, processor.retry if processor else None).max_attempts
        return TaskContext(
            task_id=task.id,
            type=task.type,
            attempt=task.attempts,
            max_attempts=limit,
            token=task.claims,
            idempotency_key=task.idempotency_key,
            enqueued_at=task.created_at,
            deadline=None if timeout is None else time.monotonic() + timeout,
            on_progress=self.on_progress,
        )

    # --- run: one screen of named steps -------------------------------------------------------------------------------

    def _run(self, run: Run, processor: Processor | None, timeout: float | None) -> None:
        run.started = time.monotonic()
        run.ident = threading.get_ident()
        ending = self._hindrance(run)
        if ending is None:
            ending = self._run_apart(run, timeout) if isinstance(run, IsolatedRun) else self.run_here(run, processor, timeout)
        if run.close():
            self._end(run, ending)

    def run_here(self, run: Run, processor: Processor | None, timeout: float | None) -> Ending | None:
        """Run an attempt in this thread; return what is left to record."""
        try:
            with self._host.app.app_context():
                return self._attempt(run, processor, timeout)
        except BaseException as error:
            # The host's own teardown functions failed: the attempt has, too, unless it is committed already.
            _logger.exception("tearing down the app context of task %d failed", run.task.id)
            return None if run.completing else Raised(failure_from(error))

    def _run_apart(self, run: IsolatedRun, timeout: float | None) -> Ending | None:
        """Wait for the process that runs an attempt; signals are sent here, where their receivers outlive it."""
        tokens = running.set(run.context), current.set(run)
        try:
            with self._host.app.app_context():
                self._announce_start(run)
            with self._limit(run, timeout):
                ending = run.attempt(self._completer.node, timeout)
        except BaseException as error:
            return self._ending_of(run, error, timeout)
        finally:
            running.reset(tokens[0])
            current.reset(tokens[1])
        if isinstance(ending, Recorded):
            self._completer.announce(Ended(run.task, Returned(), time.monotonic() - run.started), ending.outcome)
            return None
        return ending

    def _hindrance(self, run: Run) -> Ending | None:
        """Ask whether a task may begin; return how its attempt ends where it may not."""
        try:
            run.context.schedule = schedule = self.may_begin(run.task)
        except (Snooze, Reject) as error:
            return self._ending_of(run, error, None)
        except sa.exc.DBAPIError as error:
            _logger.warning("task %d could not begin: %s", run.task.id, error.orig)
            return Interrupted()
        except Exception as error:
            return Raised(failure_from(error))
        if schedule is not None:
            run.context.max_attempts = schedule.max_attempts
        return None

    def _announce_start(self, run: Run) -> None:
        node, schedule = self._completer.node, run.context.schedule
        tell(task_started, self._host, **facts(run.task, node), waited=_waited(run.task))
        if schedule is not None:
            tell(schedule_started, self._host, **occurrence_facts(run.task, node, schedule.name, schedule.scheduled_at))

    def _attempt(self, run: Run, processor: Processor | None, timeout: float | None) -> Ending | None:
        """Run the handler and, where it used the session, complete in its transaction; return what is left to record."""
        tokens = running.set(run.context), current.set(run)
        try:
            self._announce_start(run)
            result = self._call(run, processor, timeout)
            return self._complete_in_session(run, result)
        except BaseException as error:
            ending = self._ending_of(run, error, timeout)
            if run.interrupted is not None:
                _let_go(error)
            self._roll_back(run)
            if isinstance(error, LeaseLostError) and ending is None and run.interrupted is None:
                self._completer.announce(Ended(run.task, Interrupted(), time.monotonic() - run.started), None)
            if run.context.schedule is not None and isinstance(ending, (Raised, Rejected, TimedOut)):
                run.context.schedule.failed(run.context, error, self._next_run(run))
            return ending
        finally:
            running.reset(tokens[0])
            current.reset(tokens[1])

    def _call(self, run: Run, processor: Processor | None, timeout: float | None) -> Returned:
        if processor is None:
            known = ", ".join(sorted(self._only or self._host.registry.types())) or "none"
            raise TaskEngineError(f"no live node knows the task type {run.task.type!r}; this node knows: {known}")
        try:
            if isinstance(run.task.payload, Unreadable):
                raise PayloadError(run.task.type, {"payload": f"it can not be read as JSON: {run.task.payload.why}"})
            payload = processor.codec.load(run.task.payload)
        except PayloadError as error:
            raise _Unreadable from error

        def handle(payload: Any, context: TaskContext) -> Any:
            returned = processor.call(payload, context)
            # What is left to be flushed is the handler's work: it may be interrupted like the rest.
            session = used_session(self._host, run)
            if session is not None:
                session.flush()
            return returned

        with self._limit(run, timeout):
            returned = run.call(handle, payload)
        if run.interrupted is not None:
            # The handler has swallowed the interrupt; a statement that was cancelled may be missing from its work.
            raise run.interrupted
        if run.context.schedule is not None:
            run.context.schedule.succeeded(run.context, returned, self._next_run(run), self._host.settings.max_payload)
        return Returned(dump_result(returned, self._host.settings.max_payload, task_type=run.task.type) if processor.store_result else None)

    def _next_run(self, run: Run) -> Callable[[TaskContext], Any] | None:
        """Return what the code's schedule is asked for its next time after a run."""
        declared = self._host.schedules.get(run.context.schedule.name) if run.context.schedule is not None else None
        return getattr(declared.definition.timing, "next_run", None) if declared is not None else None

    def _complete_in_session(self, run: Run, ending: Returned) -> Ending | None:
        session = used_session(self._host, run)
        if session is None:
            return ending
        connection = session.connection()
        driver = connection.connection.driver_connection
        with self._database.watchdog.limit(STATEMENT_DEADLINE, lambda: self._database.dialect.sever(driver)):
            ended = Ended(run.task, ending, time.monotonic() - run.started, run.context.schedule)
            outcome = None if run.abandoned else self._completer.settle(connection, ended)
            if outcome is None:
                raise LeaseLostError(run.task.id)
            run.completing = True
            session.commit()
        self._completer.announce(ended, outcome)
        return None

    def _roll_back(self, run: Run) -> None:
        """Leave nothing of a failed attempt in the session; a connection whose statement was cancelled is not used again."""
        run.completing = False
        registry = self._host.database().session.registry
        if not registry.has():
            return
        session = registry()
        outbox.discard(session)
        run.await_cancel()
        try:
            # Also where a statement was cancelled, after which the pool drops the connection: SQLite's keeps its lock
            # beyond a close, as long as something holds a cursor of it.
            with self._database.watchdog.limit(STATEMENT_DEADLINE, lambda: run.sever(self._database.dialect.sever)):
                session.rollback()
        except Exception:
            _logger.debug("rolling back task %d failed, its connection is dropped", run.task.id, exc_info=True)
            session.invalidate()

    # --- end ----------------------------------------------------------------------------------------------------------

    def _ending_of(self, run: Run, error: BaseException, timeout: float | None) -> Ending | None:
        """Return what an error means for the attempt; None where the attempt has lost its task."""
        if run.interrupted is not None:
            return ending_of_interrupt(run.interrupted, timeout, failure_from(error).traceback)
        match error:
            case LeaseLostError():
                return None
            case _Unreadable():
                assert error.__cause__ is not None
                return Rejected(failure_from(error.__cause__))
            case Reject():
                return Rejected(failure_from(error))
            case Retry():
                return Raised(failure_from(error), after=error.after)
            case Snooze():
                return Snoozed(error.after)
            case _:
                return Raised(failure_from(error))

    def _end(self, run: Run, ending: Ending | None) -> None:
        duration = time.monotonic() - run.started
        if ending is not None:
            self._completer.put(Ended(run.task, ending, duration, run.context.schedule))
        # Only now: who waits until nothing runs relies on every end being with the completer.
        self._runs.remove(run)
        self._slots.give_back(run.task.type, duration)

    # --- interrupts ---------------------------------------------------------------------------------------------------

    def _limit(self, run: Run, timeout: float | None) -> AbstractContextManager[None]:
        """Interrupt a handler that takes longer than ``timeout`` seconds."""
        if timeout is None:
            return nullcontext()
        return self._database.watchdog.limit(timeout, lambda: self._interrupt(run, TaskTimedOut, TimedOut(timeout)))

    def _interrupt(self, run: Run, reason: type[TaskInterrupt], ending: Ending | None) -> None:
        """End a handler from a thread of its own, since cancelling a statement may block; give the thread up if it stays."""

        def end() -> None:
            run.interrupt(reason, self._database.dialect.cancel_statement)
            self._database.watchdog.watch(ABANDON_AFTER, lambda: self._give_up(run, ending))

        try:
            threading.Thread(target=end, name=f"taskengine-interrupt-{run.task.id}", daemon=True).start()
        except RuntimeError:
            # No thread can be started any more: the interpreter ends, and the embedded worker stops with it.
            end()

    def _give_up(self, run: Run, ending: Ending | None) -> None:
        if not run.abandon():
            return
        _logger.warning("task %d does not react to %s: its thread is given up and replaced", run.task.id, run.interrupted)
        self.abandoned += 1
        if isinstance(self._pool, ThreadPool):
            self._pool.give_up(run.ident)
        self._end(run, ending)

    def cancel(self, task_id: int, claims: int) -> None:
        """Tell a handler that its task is to be cancelled, and interrupt it if it does not end by itself."""
        run = self._runs.get(task_id, claims)
        if run is not None and not run.context.cancel_event.is_set():
            run.context.cancel_event.set()
            self._database.watchdog.watch(CANCEL_GRACE, lambda: self._interrupt(run, TaskCancelled, Interrupted()))

    def lose(self) -> None:
        """Tell the handlers that the node's lease is lost: another node may run their tasks."""
        for run in self.runs():
            run.context.lease_lost_event.set()

    def stop(self, timeout: float) -> None:
        """Wait for the handlers, then interrupt the rest, whose tasks are released uncounted, and give up who does not react."""
        self.hurry(timeout)
        if self._runs.wait_for_none(lambda: self._stop_by):
            return
        # From here on no thread that is given up needs another in its place.
        self._pool.shutdown(wait=False)
        for run in self.runs():
            self._interrupt(run, WorkerStopping, Interrupted())
        end = time.monotonic() + _LONGEST_END
        self._runs.wait_for_none(lambda: end)

    def hurry(self, timeout: float) -> None:
        """Let a ``stop``, also one that waits already, wait for the handlers no longer than ``timeout`` seconds from now."""
        self._stop_by = min(self._stop_by, time.monotonic() + timeout)
        self._runs.look_again()

    def earliest_deadline(self) -> float:
        """Return the earliest deadline of a handler, on the clock of ``time.monotonic``; 0 where there is none."""
        return self._runs.earliest_deadline()

    def runs(self) -> list[Run]:
        """Return the attempts that this node runs now."""
        return self._runs.all()

    def runs_task(self, task_id: int, claims: int) -> bool:
        return self._runs.get(task_id, claims) is not None


def _let_go(error: BaseException | None) -> None:
    """Let an interrupt's traceback keep no cursor open: with one open, SQLite goes on interrupting, its ROLLBACK too."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _nothing() -> None:
    """Do nothing."""


def _waited(task: Claimed) -> float:
    """Return the seconds from due to claim, both by the database's clock."""
    return max(0.0, (task.claimed_at - task.available_at).total_seconds())

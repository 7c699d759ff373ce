"""One attempt in a process of its own, seen from inside: the executor of a worker, with one slot and nothing to claim.

When the handler has ended and the app context is torn down, the process ends, and threads that the handler has left with it.
"""

from __future__ import annotations

import faulthandler
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..domain.errors import TaskCancelled, TaskInterrupt, TaskLeaseLost, TaskTimedOut, WorkerStopping
from ..domain.outcome import Ending, Outcome, Raised
from ..domain.task import Claimed
from ..engine.context import TaskContext
from ..signals import schedule_started, task_started
from .apart import out_of_memory
from .completer import Completer, Ended
from .database import Database
from .executor import Executor
from .host import Host
from .run import Run
from .slots import Slots
from .wire import Message, Wire, from_ending, from_outcome, from_said, to_claimed, to_schedule

SHOW_SIGNAL = signal.SIGXCPU
"""Makes a process that hangs write where; no handler runs, so one that never gives up the interpreter's lock writes too."""
_PROD_SIGNAL = signal.SIGURG
_REPORT_EVERY = 0.2
_FLUSH_WITHIN = 5.0
"""Seconds for the spans of an attempt to be exported."""
_NOTE_LIMIT = 500
_REASONS = {reason.__name__: reason for reason in (TaskCancelled, TaskLeaseLost, TaskTimedOut, WorkerStopping)}


def run_attempt(database: Database, line: socket.socket, trace: int) -> None:
    """Wait for a task, run it in this process, which was forked for it alone, and say how it ended.

    Args:
        database: made before the fork, to share its pages, and never used there.
        line: to the worker.
        trace: file descriptor to which to write where the process dies or hangs.
    """
    faulthandler.enable(trace, all_threads=False)
    faulthandler.register(SHOW_SIGNAL, trace, all_threads=False, chain=False)
    signal.signal(_PROD_SIGNAL, lambda *_: None)
    wire = Wire(line)
    told: list[Message] | None = []
    while not told:
        told = wire.read()
        if told is None:  # It was ended before it began.
            return
    _Attempt(database, wire, told[0]).run(told[1:])
    if database.host.tracing is not None:
        database.host.tracing.flush(_FLUSH_WITHIN)
    with database.host.app.app_context():
        for engine in database.host.database().engines.values():
            engine.dispose()


class _Attempt:
    """What is needed for one attempt and for nothing else."""

    def __init__(self, database: Database, wire: Wire, request: Message) -> None:
        self._database = database
        self._wire = wire
        self._memory: int | None = request["memory"]
        self._trace: dict[str, str] = request["trace"]
        self._reporter = _Reporter(database)
        self._reporter.node = request["node"]
        self._executor = Executor(database, self._reporter, Slots(1, lambda _: None), pool=None)
        self._progress = _Progress(wire)
        task = to_claimed(request["task"])
        self._run = _OwnRun(database.host, task, self._context(task, request), wire, self._memory)

    def run(self, untold: list[Message]) -> None:
        host = self._database.host
        host.tell_elsewhere = self._tell_worker
        if host.tracing is not None:
            host.tracing.resume(self._trace)
        self._database.watchdog.start()
        threading.Thread(target=self._listen, args=(untold,), name="taskengine-line", daemon=True).start()
        ending = self._executor.run_here(self._run, self._database.host.registry.get(self._run.task.type), None)
        self._progress.flush()
        if ending is None:
            self._wire.send("recorded", outcome=from_outcome(self._reporter.outcome))
        else:
            self._wire.send("ended", ending=from_ending(self._explained(ending)), said=from_said(self._run.context.schedule))

    def _context(self, task: Claimed, request: Message) -> TaskContext:
        return TaskContext(
            task_id=task.id,
            type=task.type,
            attempt=task.attempts,
            max_attempts=request["max_attempts"],
            token=task.claims,
            idempotency_key=task.idempotency_key,
            enqueued_at=task.created_at,
            deadline=request["deadline"],
            schedule=to_schedule(request["schedule"]),
            on_progress=self._progress.report,
        )

    def _explained(self, ending: Ending) -> Ending:
        if self._memory is None or not isinstance(ending, Raised) or ending.failure.error_class != "MemoryError":
            return ending
        return replace(ending, failure=replace(ending.failure, message=out_of_memory(self._memory)))

    def _tell_worker(self, name: str, fields: Mapping[str, Any]) -> None:
        """Leave events to the worker: its receivers last and count, those here would be gone at once. It has told of the start itself."""
        if name not in (task_started.name, schedule_started.name):
            with suppress(OSError):
                self._wire.send_if_free("event", name=name, fields=fields)

    # --- what the worker says -----------------------------------------------------------------------------------------

    def _listen(self, untold: list[Message]) -> None:
        told: list[Message] | None = untold
        while told is not None:
            for message in told:
                self._heed(message)
            told = self._wire.read()

    def _heed(self, message: Message) -> None:
        match message["told"]:
            case "cancel":
                self._run.context.cancel_event.set()
            case "lease_lost":
                self._run.context.lease_lost_event.set()
            case "interrupt":
                self._run.interrupt(_REASONS[message["reason"]], self._database.dialect.cancel_statement)


class _OwnRun(Run):
    """A run in the main thread of its process, where a signal ends a system call, so that an interrupt strikes at once."""

    def __init__(self, host: Host, task: Claimed, context: TaskContext, wire: Wire, memory: int | None) -> None:
        super().__init__(host, task, context)
        self._wire = wire
        self._cap = _MemoryCap(memory)

    def call(self, handler: Callable[[Any, TaskContext], Any], payload: Any) -> Any:
        with self._cap:
            return super().call(handler, payload)

    def interrupt(self, reason: type[TaskInterrupt], cancel_statement: Callable[[Any], None]) -> None:
        super().interrupt(reason, cancel_statement)
        if self.ident:
            signal.pthread_kill(self.ident, _PROD_SIGNAL)

    def _leave_handler(self) -> None:
        super()._leave_handler()
        self._cap.lift()
        with suppress(OSError):  # Without a worker, the zygote ends this process.
            self._wire.send("left")


class _MemoryCap:
    """Bounds what a handler may take beyond what the process has when it is called."""

    def __init__(self, memory: int | None) -> None:
        self._memory = memory
        self._before = resource.getrlimit(resource.RLIMIT_DATA)

    def __enter__(self) -> None:
        if self._memory is not None:
            most = _data_size() + self._memory
            if any(limit != resource.RLIM_INFINITY and limit <= most for limit in self._before):
                return  # What the system allows is stricter.
            resource.setrlimit(resource.RLIMIT_DATA, (most, self._before[1]))

    def __exit__(self, *error: object) -> None:
        self.lift()

    def lift(self) -> None:
        """Leave room for telling what happened; the error itself may still hold what the handler has filled."""
        if self._memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)


def _data_size() -> int:
    """Return the bytes that the system counts against RLIMIT_DATA; 0 where it does not say."""
    with suppress(OSError), Path("/proc/self/status").open() as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


class _Reporter(Completer):
    """Records in the handler's own transaction only; the worker does the rest."""

    outcome: Outcome | None = None
    """What was recorded; None where the attempt had lost its task."""

    def announce(self, ended: Ended, outcome: Outcome | None) -> None:
        self.outcome = outcome


class _Progress:
    """Passes on how far the handler is; what comes too often is left out, but not the last."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._unsent: dict[str, Any] | None = None
        self._sent_at = float("-inf")

    def report(self, task_id: int, token: int, done: float, total: float | None, note: str | None) -> None:
        self._unsent = {"done": done, "total": total, "note": note and note[:_NOTE_LIMIT]}
        if time.monotonic() - self._sent_at >= _REPORT_EVERY:
            self.flush()

    def flush(self) -> None:
        report, self._unsent = self._unsent, None
        if report is not None:
            self._sent_at = time.monotonic()
            with suppress(OSError):
                self._wire.send_if_free("progress", **report)

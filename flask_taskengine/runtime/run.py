"""One attempt while it runs: what its thread does, and how another thread may end it."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from typing import Any

from werkzeug.local import LocalProxy

from ..domain.errors import TaskCancelled, TaskInterrupt, TaskTimedOut, WorkerStopping
from ..domain.outcome import Ending, Interrupted, TimedOut
from ..domain.task import Claimed
from ..engine.context import TaskContext, running
from .host import Host

_logger = logging.getLogger("flask_taskengine")

current: ContextVar[Run | None] = ContextVar("flask_taskengine_run", default=None)
"""The run of this thread; None outside of handlers."""

current_task: TaskContext = LocalProxy(  # type: ignore[assignment]
    running, unbound_message="no task is running here: current_task exists inside a handler only"
)
"""The attempt that this thread runs, wherever the handler's code needs it."""


class Phase(Enum):
    """Where a run stands, which says what other threads may do to it."""

    WAITING = "waiting"
    HANDLER = "handler"
    """Only now may another thread raise into it."""
    ENDING = "ending"
    ABANDONED = "abandoned"
    """Its outcome has been recorded for it; whatever it still does is void."""


class Run:
    """One attempt on this node, from the claim to its end."""

    def __init__(self, host: Host, task: Claimed, context: TaskContext) -> None:
        self.host = host
        self.task = task
        self.context = context
        self.started = time.monotonic()
        self.committed = False
        """Whether the handler has committed: the session counts as used even if it is idle again."""
        self.completing = False
        self.interrupted: type[TaskInterrupt] | None = None
        self.ident = 0
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._phase = Phase.WAITING
        self._drivers: list[Any] = []
        self._cancelled: list[Any] = []
        self._cancelling = threading.Event()
        self._cancelling.set()

    @property
    def abandoned(self) -> bool:
        return self._phase is Phase.ABANDONED

    # --- by the thread that runs it -----------------------------------------------------------------------------------

    def call(self, handler: Callable[[Any, TaskContext], Any], payload: Any) -> Any:
        """Call the handler; only in here can an interrupt be raised."""
        self.ident = threading.get_ident()
        with self._lock:
            if self.interrupted is not None:
                raise self.interrupted
            self._phase = Phase.HANDLER
        try:
            return handler(payload, self.context)
        finally:
            self._leave_handler()

    def takes(self, driver: Any) -> None:
        """Note a driver connection that the attempt works on from now on."""
        with self._lock:
            self._drivers.append(driver)

    def gives_back(self, driver: Any) -> bool:
        """Take note that the attempt is done with a connection, which others may get now.

        Returns:
            Whether its statement was cancelled, so that it must not be kept; only once no cancel is on its way any more.
        """
        with self._lock:
            self._drivers = [mine for mine in self._drivers if mine is not driver]
            cancelled = any(mine is driver for mine in self._cancelled)
        if cancelled:
            self._cancelling.wait()
        return cancelled

    def close(self) -> bool:
        """Say whether the thread may still record the outcome; false once that was done in its stead."""
        with self._lock:
            mine = self._phase is not Phase.ABANDONED
            self._phase = Phase.ENDING if mine else Phase.ABANDONED
        self.ended.set()
        return mine

    def await_cancel(self) -> None:
        """Wait until no statement is being cancelled any more."""
        self._cancelling.wait()

    def _leave_handler(self) -> None:
        while True:
            try:
                with self._lock:
                    if self._phase is Phase.HANDLER:
                        self._phase = Phase.ENDING
                break
            except TaskInterrupt:
                continue
        if self.interrupted is not None:
            # One that was raised and not yet delivered must not strike later, in code that is not the handler's.
            _raise_in(self.ident, None)

    # --- by other threads ---------------------------------------------------------------------------------------------

    def interrupt(self, reason: type[TaskInterrupt], cancel_statement: Callable[[Any], None]) -> None:
        """End the handler: cancel the statement it waits for, then raise ``reason`` in its thread."""
        with self._lock:
            if self._phase not in (Phase.WAITING, Phase.HANDLER) or self.interrupted is not None:
                return
            self.interrupted = reason
            if self._phase is Phase.WAITING:
                return
            self._cancelled = list(self._drivers)
            self._cancelling.clear()
        try:
            for driver in self._cancelled:
                cancel_statement(driver)
        except Exception:
            _logger.exception("cancelling a statement of task %d failed", self.task.id)
        finally:
            self._cancelling.set()
            with self._lock:
                if self._phase is Phase.HANDLER:
                    _raise_in(self.ident, reason)

    def sever(self, sever: Callable[[Any], None]) -> None:
        """Break the connections that the attempt still holds: their server does not answer."""
        with self._lock:
            drivers = list(self._drivers)
        for driver in drivers:
            sever(driver)

    def abandon(self) -> bool:
        """Give the thread up, unless the handler has ended; return whether it was given up."""
        with self._lock:
            if self._phase not in (Phase.WAITING, Phase.HANDLER):
                return False
            self._phase = Phase.ABANDONED
            return True


def ending_of_interrupt(reason: type[TaskInterrupt], timeout: float | None, traceback: str | None) -> Ending | None:
    """Return what an interrupt means for the attempt that it ended; None where the attempt has lost its task."""
    if reason is TaskTimedOut:
        return TimedOut(timeout or 0.0, traceback)
    return Interrupted() if reason in (TaskCancelled, WorkerStopping) else None


def _raise_in(ident: int, reason: type[TaskInterrupt] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(reason) if reason is not None else None)

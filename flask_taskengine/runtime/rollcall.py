"""Compares what this node runs with what the database says that it runs."""

from __future__ import annotations

import time

from ..domain.outcome import Interrupted
from ..store import tasks
from .completer import Completer, Ended
from .database import Database
from .executor import Executor
from .loop import Loop


class RollCall:
    """One statement per heartbeat brings cancel requests to handlers, and finds claims whose answer never arrived.

    A claim can commit although its connection broke before the answer came: nobody runs such a task, and the live
    heartbeat of its node would keep it RUNNING for ever. It is released once it has been missed here for a whole interval.
    """

    def __init__(self, database: Database, executor: Executor, completer: Completer, interval: float) -> None:
        self._database = database
        self._executor = executor
        self._completer = completer
        self._interval = interval
        self._line = database.line()
        self._missed_since: dict[tuple[int, int], float] = {}
        self._next_call = 0.0
        self._loop = Loop("roll call", self._run_once)
        self.node = ""

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """Look now: a cancel may have been asked for."""
        if self._executor.runs():
            self._loop.wake()

    def stop(self) -> None:
        self._loop.stop()
        self._line.close()

    def _run_once(self) -> float:
        now = time.monotonic()
        if now < self._next_call:
            self._look_for_cancels()
            return self._next_call - now
        with self._line.statement() as connection:
            rows = tasks.running_on(connection, self._database.tables, self.node)
        self._next_call = now + self._interval
        missed = {}
        for task_id, claims, cancel_requested in rows:
            if not self._knows(task_id, claims):
                missed[task_id, claims] = self._missed_since.get((task_id, claims), now)
            elif cancel_requested:
                self._executor.cancel(task_id, claims)
        self._missed_since = missed
        for (task_id, claims), since in missed.items():
            if now - since >= self._interval:
                self._release(task_id, claims)
        return self._interval

    def _look_for_cancels(self) -> None:
        """Ask for what runs here by its ids: every wake-up comes here, so it must cost little."""
        if running := [run.task.id for run in self._executor.runs()]:
            with self._line.statement() as connection:
                asked_for = tasks.cancels_asked_for(connection, self._database.tables, running)
            for task_id, claims in asked_for:
                self._executor.cancel(task_id, claims)

    def _knows(self, task_id: int, claims: int) -> bool:
        return self._executor.runs_task(task_id, claims) or self._completer.holds(task_id, claims)

    def _release(self, task_id: int, claims: int) -> None:
        with self._line.transaction() as connection:
            task = tasks.claimed(connection, self._database.tables, task_id, claims)
            if task is None or self._knows(task_id, claims):
                return
            ended = Ended(task, Interrupted(), 0.0)
            outcome = self._completer.settle(connection, ended)
        self._completer.announce(ended, outcome)

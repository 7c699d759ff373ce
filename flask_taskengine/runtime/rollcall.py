"""Compares what this node runs with what the database says that it runs."""

from __future__ import annotations


from ..domain.outcome import Interrupted
from ..store import tasks
from .completer import Completer, Ended
from .database import Database
from .executor import Executor
from .loop import Loop


class RollCall:
    """One statement per heartbeat brings cancel requests to handlers, and finds claims whose answer never arrived.

    A claim can commit although its connection broke before the answer came: nobody runs such a task, and the live
    heartbeat of its node would keep it RUNNING for ever. It is released once two calls in a row have missed it here.
    """

    def __init__(self, database: Database, executor: Executor, completer: Completer, interval: float) -> None:
        self._database = database
        self._executor = executor
        self._completer = completer
        self._interval = interval
        self._line = database.line()
        self._strays: set[tuple[int, int]] = set()
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
        node = self.node
        with self._line.statement() as connection:
            rows = tasks.running_on(connection, self._database.tables, node)
        strays = set()
        for task_id, claims, cancel_requested in rows:
            if not self._knows(task_id, claims):
                strays.add((task_id, claims))
            elif cancel_requested:
                self._executor.cancel(task_id, claims)
        for task_id, claims in strays & self._strays:
            self._release(node, task_id, claims)
        self._strays = strays
        return self._interval

    def _knows(self, task_id: int, claims: int) -> bool:
        return self._executor.runs_task(task_id, claims) or self._completer.holds(task_id, claims)

    def _release(self, node: str, task_id: int, claims: int) -> None:
        with self._line.transaction() as connection:
            task = tasks.claimed(connection, self._database.tables, task_id, claims)
            if task is None or self._knows(task_id, claims):
                return
            ended = Ended(task, Interrupted(), 0.0)
            outcome = self._completer.settle(connection, ended)
        self._completer.announce(ended, outcome)



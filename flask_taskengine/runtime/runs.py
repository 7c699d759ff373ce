"""The attempts that this node runs now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .run import Run


class Runs:
    """A register of runs; one leaves it when its end is with the completer, or when it is void."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, int], Run] = {}
        self._changed = threading.Condition()

    def add(self, run: Run) -> None:
        with self._changed:
            self._runs[run.task.id, run.task.claims] = run

    def remove(self, run: Run) -> None:
        with self._changed:
            self._runs.pop((run.task.id, run.task.claims), None)
            self._changed.notify_all()

    def get(self, task_id: int, claims: int) -> Run | None:
        return self._runs.get((task_id, claims))

    def all(self) -> list[Run]:
        with self._changed:
            return list(self._runs.values())

    def earliest_deadline(self) -> float:
        """Return the earliest deadline of a handler, on the clock of ``time.monotonic``; 0 where there is none."""
        return min((run.context.deadline for run in self.all() if run.context.deadline is not None), default=0.0)

    def look_again(self) -> None:
        """Let who waits ask for its deadline again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_none(self, deadline: Callable[[], float]) -> bool:
        """Wait until nothing runs, until the deadline on the clock of ``time.monotonic``; return whether nothing runs."""
        with self._changed:
            while self._runs:
                left = deadline() - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            return True

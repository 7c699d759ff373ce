"""How many tasks run on this node, in all and of each type."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

_WEIGHT = 0.1


class Slots:
    """The free slots of a worker; a claimed task has one until its handler has ended."""

    def __init__(self, size: int, on_free: Callable[[str], None]) -> None:
        self.size = size
        self._on_free = on_free
        self._taken: Counter[str] = Counter()
        self._in_use = 0
        self.typical = 0.0
        """Seconds that a task has a slot, as a moving average."""
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        return self.size - self._in_use

    @property
    def in_use(self) -> int:
        return self._in_use

    def running(self, task_type: str) -> int:
        return self._taken[task_type]

    def take(self, task_type: str) -> None:
        with self._lock:
            self._in_use += 1
            self._taken[task_type] += 1

    def give_back(self, task_type: str, duration: float) -> None:
        with self._lock:
            self.typical += _WEIGHT * (duration - self.typical)
            self._in_use -= 1
            self._taken[task_type] -= 1
        self._on_free(task_type)

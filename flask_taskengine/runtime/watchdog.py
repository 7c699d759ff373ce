"""One thread that acts when a deadline passes: of an internal statement or of a handler."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_logger = logging.getLogger("flask_taskengine")


class Watch:
    """An action that is due unless it is called off first."""

    __slots__ = ("action", "at")

    def __init__(self, at: float, action: Callable[[], None]) -> None:
        self.at = at
        self.action: Callable[[], None] | None = action

    def call_off(self) -> None:
        self.action = None


class Watchdog:
    """Runs short actions at their time; a long one belongs in a thread of its own."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Watch]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="taskengine-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def watch(self, delay: float, action: Callable[[], None]) -> Watch:
        """Run ``action`` after ``delay`` seconds unless the watch is called off."""
        watch = Watch(time.monotonic() + delay, action)
        with self._changed:
            heapq.heappush(self._heap, (watch.at, next(self._order), watch))
            if self._heap[0][2] is watch:
                self._changed.notify()
        return watch

    @contextmanager
    def limit(self, delay: float, action: Callable[[], None]) -> Iterator[None]:
        """Run ``action`` if the block takes longer than ``delay`` seconds."""
        watch = self.watch(delay, action)
        try:
            yield
        finally:
            watch.call_off()

    def earliest(self) -> float | None:
        """Return when the next action is due, on the clock of ``time.monotonic``."""
        with self._changed:
            self._drop_called_off()
            return self._heap[0][0] if self._heap else None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping:
                    self._drop_called_off()
                    wait = self._heap[0][0] - time.monotonic() if self._heap else None
                    if wait is not None and wait <= 0:
                        break
                    self._changed.wait(wait)
                if self._stopping:
                    return
                action = heapq.heappop(self._heap)[2].action
            if action is not None:
                self._act(action)

    def _drop_called_off(self) -> None:
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)

    @staticmethod
    def _act(action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            _logger.exception("an action of the watchdog failed")

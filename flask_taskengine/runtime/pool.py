"""The threads in which handlers run."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_logger = logging.getLogger("flask_taskengine")


class ThreadPool:
    """A fixed number of threads; one that does not come back can be given up and is replaced."""

    def __init__(self, size: int) -> None:
        self._work: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._numbers = itertools.count(1)
        self._given_up: set[int] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._lock = threading.Lock()
        for _ in range(size):
            self._add()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function in the next free thread."""
        self._work.put((function, arguments))

    def give_up(self, ident: int) -> None:
        """Count a thread as lost: another takes its place, and it ends when its function returns."""
        with self._lock:
            self._given_up.add(ident)
            if self._closed:
                return
        self._add()

    def shutdown(self, wait: bool = True, timeout: float | None = None) -> None:
        """End every thread once the submitted work is done.

        Args:
            wait: until all have ended that are not given up, at most ``timeout`` seconds.
            timeout: None waits without a limit.
        """
        with self._lock:
            self._closed = True
            threads = list(self._threads)
            given_up = set(self._given_up)
        for _ in threads:
            self._work.put(None)
        if wait:
            end = None if timeout is None else time.monotonic() + timeout
            for thread in threads:
                if thread.ident not in given_up:
                    thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def _add(self) -> None:
        thread = threading.Thread(target=self._run, name=f"taskengine-slot-{next(self._numbers)}", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            item = self._work.get()
            if item is None:
                break
            function, arguments = item
            try:
                function(*arguments)
            except BaseException:
                # Nothing may end a slot, not even a SystemExit or an interrupt that comes late.
                _logger.exception("a slot survived an unexpected error")
            del item, function, arguments
            with self._lock:
                if me.ident in self._given_up:
                    break
        with self._lock:
            self._threads.discard(me)
            self._given_up.discard(me.ident or 0)

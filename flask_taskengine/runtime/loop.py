"""The one life-cycle that all background threads share, and how they outlive a database that is down."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

import sqlalchemy as sa

_logger = logging.getLogger("flask_taskengine")


class Outage:
    """Says once that something stopped working and once that it works again, and how long to wait in between."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0

    def failed(self, error: BaseException, trace: BaseException | None = None) -> float:
        """Note a failure; return the seconds to wait, growing to 3 and jittered."""
        if self._failures == 0:
            _logger.warning("%s: %s: %s; trying again", self._what, type(error).__name__, _first_line(error), exc_info=trace)
        self._failures += 1
        return min(3.0, 0.1 * 1.6 ** min(self._failures - 1, 20)) * random.uniform(0.5, 1.0)

    def worked(self) -> None:
        if self._failures:
            _logger.warning("%s: works again after %d failed tries", self._what, self._failures)
            self._failures = 0


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0][:300] if text else "no message"


class Loop:
    """The life of a background thread: start, wake, stop. ``run_once`` does the work and returns the seconds to sleep."""

    def __init__(self, name: str, run_once: Callable[[], float | None]) -> None:
        self.name = name
        self._run_once = run_once
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._outage = Outage(name)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"taskengine-{self.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Run again now, or at once after the current run."""
        self._wake.set()

    def stop(self, timeout: float | None = None) -> bool:
        """End the thread after its current run; return whether it has ended. May be called again and from any thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                sleep = self._run_once()
            except BaseException as error:
                # Also SystemExit: a thread that ended unseen would leave a worker that looks alive.
                sleep = self._survive(error)
            else:
                self._outage.worked()
            if sleep is None or sleep > 0:
                self._wake.wait(sleep)

    def _survive(self, error: BaseException) -> float:
        expected = isinstance(error, (sa.exc.SQLAlchemyError, OSError))
        wait = self._outage.failed(error, None if expected else error)
        self._wake.clear()
        self._stopping.wait(wait)
        return 0

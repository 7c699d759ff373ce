"""Wakes the dispatcher when the database says that something may be due. A hint: the poll is the truth."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..store.dialects.base import Listener
from .database import STATEMENT_DEADLINE, Database
from .loop import Loop

_RETEST_EVERY = 60.0
"""Seconds after which a silent line is opened anew: a half-open socket shows neither events nor an error."""
_WITHOUT = 60.0
"""Seconds between tries where listening does not work."""

_logger = logging.getLogger("flask_taskengine")


class Notifier:
    """One thread that listens; after every new connection it wakes the dispatcher, since something may have been missed."""

    def __init__(self, database: Database, wake: Callable[[], None]) -> None:
        self._database = database
        self._wake = wake
        self._listener: Listener | None = None
        self._opened = 0.0
        self._loop = Loop("notifier", self._run_once)
        self._settled = threading.Event()
        self.mode = "poll"

    def start(self) -> None:
        if self._database.host.settings.wakeup == "poll":
            self._settled.set()
            return
        self._loop.start()

    @property
    def settled(self) -> bool:
        """Whether ``mode`` says how wake-ups come."""
        return self._settled.is_set()

    def stop(self) -> None:
        self._loop.stop(0)
        listener = self._listener
        if listener is not None:
            # Ends the wait of the thread.
            listener.close()
        self._loop.stop(STATEMENT_DEADLINE)
        if self._listener is not None:
            # Opened in between, or left open by a thread that did not wait.
            self._listener.close()
            self._listener = None

    def _run_once(self) -> float:
        with self._database.host.unseen():
            return self._listen()

    def _listen(self) -> float:
        listener = self._listener
        if listener is None:
            return self._open()
        try:
            if listener.wait(_RETEST_EVERY):
                self._opened = time.monotonic()
                self._wake()
            elif time.monotonic() - self._opened >= _RETEST_EVERY:
                self._close(listener)
        except Exception:
            self._close(listener)
            if not self._loop.stopping:
                raise
        return 0

    def _open(self) -> float:
        settings = self._database.host.settings
        try:
            self._listener = self._database.dialect.listener(self._database.engine, settings.listen_url)
        except ConnectionError as error:
            self.mode = "poll"
            if not self._settled.is_set() or settings.wakeup == "notify":
                _logger.warning("wake-ups by poll only, every %g s: %s", settings.poll_interval, error)
            self._settled.set()
            return _WITHOUT
        self._opened = time.monotonic()
        self.mode = self._listener.mode
        self._settled.set()
        self._wake()
        return 0

    def _close(self, listener: Listener) -> None:
        self._listener = None
        listener.close()

"""The worker inside a web process: once per host, and only where requests are served."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from flask import request_started

from ..domain.errors import ConfigError
from .host import Host
from .hostlock import HostLock
from .isolation import isolated_types
from .reaper import take_back
from .serving import Prospect, is_serving, prospect
from .worker import Worker, WorkerOptions

_WATCH_EVERY = 0.1
_WATCH_FOR = 60.0
"""Seconds within which a process that is about to serve must be seen doing so; after that only a request starts the worker."""
_TRY_EVERY = (1.0, 2.0)
"""Seconds between two tries to take the lock, jittered."""
_TAKE_BACK_EVERY = 0.5

_logger = logging.getLogger("flask_taskengine")


class Embedded:
    """Starts a worker in this process, or in those that it forks, once they serve requests.

    The rule: ``flask run`` (the reloader's child, not its parent), gunicorn's workers and waitress are recognised and need no
    traffic; under any other server the first request starts it. Other commands of ``flask`` never do, nor does an app that is
    ``testing``. Of all processes of a host that serve the same database, the one that holds a lock file works; another takes
    over within seconds when it dies.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._prospect = Prospect.UNKNOWN
        self._served = False
        self._thread: threading.Thread | None = None
        self._begin_lock = threading.Lock()
        self._stopping = threading.Event()
        self._lock: HostLock | None = None
        self._inherited: list[Any] = []
        self.worker: Worker | None = None

    def arm(self) -> None:
        """Decide, while the app is being made, when the worker may start. Does not connect, and starts a thread only where it may."""
        self._prospect = prospect()
        if self._prospect is Prospect.NEVER:
            return
        _armed.add(self)
        request_started.connect(self._requested, self._host.app)
        if self._prospect is Prospect.SOON:
            _exit_on_sigterm()
            self._begin(watch=True)

    def forbid(self) -> None:
        """Never start in this process."""
        self._prospect = Prospect.NEVER
        request_started.disconnect(self._requested, self._host.app)

    def stop(self) -> None:
        """Stop the worker within ``SHUTDOWN_TIMEOUT`` and let another process have its place; returns when it has stopped."""
        self._stopping.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _requested(self, sender: Any, **_: Any) -> None:
        self._served = True
        if self._thread is None and self._prospect is not Prospect.NEVER and not self._host.app.testing:
            self._begin(watch=False)

    def _begin(self, *, watch: bool) -> None:
        with self._begin_lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, args=(watch,), name="taskengine-embedded", daemon=True)
            self._thread.start()

    def forked(self) -> None:
        """In a forked process: the worker, its threads and its lock are the parent's."""
        began = self._thread is not None
        if self._lock is not None:
            self._lock.forget()
        self._host.wakers.clear()
        # Kept, since collecting it would close connections that the parent uses.
        self._inherited.append(self.worker)
        self._thread = self._lock = self.worker = None
        self._begin_lock = threading.Lock()
        self._stopping = threading.Event()
        self._served = False
        if began:
            # A process of a handler's making.
            self._prospect = Prospect.NEVER
        elif self._prospect is Prospect.CHILDREN:
            self._prospect = Prospect.SOON
            self._begin(watch=True)

    # --- the life of the candidate -----------------------------------------------------------------------------------

    def _run(self, watch: bool) -> None:
        try:
            if watch and not self._see_serving():
                self._thread = None
                return
            threading.Thread(target=self._stop_at_exit, name="taskengine-embedded-exit", daemon=False).start()
            self._lock = HostLock(self._host)
            while not self._stopping.is_set():
                if self._lock.take():
                    self._work(self._lock)
                    return
                self._stopping.wait(random.uniform(*_TRY_EVERY))
        except ConfigError as error:
            _logger.error("the embedded worker does not start: %s", error)  # noqa: TRY400 - the message says it all
        except Exception:
            _logger.exception("the embedded worker has failed")

    def _see_serving(self) -> bool:
        end = time.monotonic() + _WATCH_FOR
        while not is_serving() and not self._served:
            if time.monotonic() >= end or self._stopping.wait(_WATCH_EVERY):
                return False
        return True

    def _work(self, lock: HostLock) -> None:
        predecessor = lock.read()
        options = WorkerOptions(concurrency=self._host.settings.concurrency, types=self._types())
        worker = self.worker = Worker(self._host, options, lock.write, self._host.sender.executor_factory)
        _logger.info("embedded %s", options.in_words(self._host))
        worker.beat_itself()
        worker.start()
        self._host.wakers.add(worker.wake)
        try:
            while not self._stopping.wait(_TAKE_BACK_EVERY if predecessor else None):
                if predecessor and self._take_back(worker, predecessor):
                    predecessor = ""
        finally:
            self._host.wakers.discard(worker.wake)
            worker.stop()
            lock.release()

    def _types(self) -> frozenset[str] | None:
        apart = isolated_types(self._host, None)
        if not apart:
            return None
        _logger.warning(
            "the embedded worker leaves the task types %s to `flask taskengine worker`: they have isolation='process', "
            "and a process that serves requests can not be forked safely",
            ", ".join(apart),
        )
        return frozenset(self._host.registry.types()).difference(apart)

    def _take_back(self, worker: Worker, node: str) -> bool:
        """Take the tasks of the process that had the lock before and died with it; others would do so after the lease."""
        if not worker.membership.registered.is_set():
            return False
        line = worker.database.line()
        try:
            return take_back(worker.database, line, worker.completer, node, f"the web process of node {node} died", None)
        except sa.exc.SQLAlchemyError:
            return False
        finally:
            line.close()

    def _stop_at_exit(self) -> None:
        # Python waits for this thread when the main thread has ended, and before it takes away what stopping needs.
        threading.main_thread().join()
        self.stop()


def _exit_on_sigterm() -> None:
    """Let ``flask run`` end as it does under its reloader: by an exit, so that the worker can stop."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))


def _after_fork() -> None:
    for embedded in tuple(_armed):
        embedded.forked()


_armed: WeakSet[Embedded] = WeakSet()
os.register_at_fork(after_in_child=_after_fork)

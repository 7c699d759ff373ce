"""Keeps how far handlers say they are, outside their transactions."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Mapping

import sqlalchemy as sa

from ..store import tasks
from .database import Database
from .loop import Loop

EVERY = 1.0
"""Seconds between two writes: what comes more often replaces what has not been written."""
NOTE_LIMIT = 500
"""Characters of a note that are kept."""

_logger = logging.getLogger("flask_taskengine")


class ProgressBoard:
    """One thread, from the first report on, that writes the newest report of each attempt at most once a second.

    A report is a courtesy: one that can not be written is dropped, and nothing fails by it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._line = database.line()
        self._loop = Loop("progress", self._run_once)
        self._lock = threading.Lock()
        self._unwritten: dict[tuple[int, int], str] = {}
        self._next_at = 0.0
        self._started = self._stopped = False

    def report(self, task_id: int, token: int, done: float, total: float | None, note: str | None) -> None:
        """Take a report; may be called from any thread, as often as one likes."""
        kept = None if note is None else note[:NOTE_LIMIT].encode(errors="replace").decode().replace("\0", "")
        text = json.dumps({"done": _number(done), "total": _number(total), "note": kept})
        with self._lock:
            if self._stopped:
                return
            first = not self._unwritten
            self._unwritten[task_id, token] = text
            if not self._started:
                self._started = True
                self._loop.start()
        if first:
            self._loop.wake()

    def stop(self) -> None:
        """Write nothing more."""
        with self._lock:
            self._stopped = True
        if self._started:
            self._loop.stop()
        self._line.close()

    def _run_once(self) -> float | None:
        if (rest := self._next_at - time.monotonic()) > 0:
            return rest
        with self._lock:
            reports, self._unwritten = self._unwritten, {}
        if not reports:
            return None
        self._next_at = time.monotonic() + EVERY
        try:
            self._write(reports)
        except sa.exc.OperationalError:
            # On SQLite, say, where the handler itself has the lock on the file.
            _logger.debug("the progress of %d tasks could not be written", len(reports), exc_info=True)
        return EVERY

    def _write(self, reports: Mapping[tuple[int, int], str]) -> None:
        dialect = self._database.dialect
        with self._line.statement() as connection:
            dialect.wait_shortly(connection)
        with self._line.transaction() as connection:
            for (task_id, token), text in sorted(reports.items()):
                tasks.set_progress(connection, dialect.tables, task_id, token, text)


def _number(value: float | None) -> float | None:
    """Return a finite number as it is; what JSON does not know is left out."""
    return value if value is not None and math.isfinite(value) else None

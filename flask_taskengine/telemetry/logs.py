"""The engine's log lines about tasks: one for each event, all of them here; and the task's fields on every other record.

A host that configures logging itself puts the filter on its handlers::

    handler.addFilter(TaskFields())
    handler.setFormatter(logging.Formatter("%(asctime)s [%(task_id)s] %(message)s", defaults={"task_id": "-"}))
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from blinker import NamedSignal

from .. import signals
from ..domain.outcome import Failure
from ..engine.context import running
from ..engine.presentation import first_line

_logger = logging.getLogger("flask_taskengine.events")

# --- one line for each event ------------------------------------------------------------------------------------------

_TASK = "task %(task_id)s (%(task_type)s)"

LINES: tuple[tuple[NamedSignal, int, str], ...] = (
    (signals.task_started, logging.DEBUG, f"{_TASK} started, attempt %(attempt)d, %(waited).3f s after it was due"),
    (signals.task_succeeded, logging.INFO, f"{_TASK} succeeded in %(duration).3f s"),
    (signals.task_retried, logging.WARNING, f"{_TASK} failed in attempt %(attempt)d, is due again in %(delay).3g s: %(error)s"),
    (signals.task_failed, logging.ERROR, f"{_TASK} is FAILED after attempt %(attempt)d: %(error)s"),
    (signals.task_dead, logging.ERROR, f"{_TASK} is DEAD after attempt %(attempt)d: %(error)s"),
    (signals.task_timed_out, logging.WARNING, f"{_TASK} overran its timeout of %(timeout)g s in attempt %(attempt)d"),
    (signals.task_cancelled, logging.INFO, f"{_TASK} is CANCELLED"),
    (signals.task_requeued, logging.INFO, f"{_TASK} is PENDING again: %(reason)s"),
    (signals.task_lease_lost, logging.WARNING, f"{_TASK} is lost to this node, what attempt %(attempt)d wrote is rolled back"),
    (signals.schedule_missed, logging.WARNING, "schedule %(schedule)s has missed times from %(first)s to %(until)s (policy %(policy)s)"),
)
"""The lines: signal, level, text. A signal's fields are the record's attributes too; of a ``failure``, ``error_class``,
``error`` (its first line) and ``traceback`` are."""


def connect() -> None:
    """Log a line for each event from now on, on the logger ``flask_taskengine.events``; calling it again changes nothing."""
    for signal, receiver in _RECEIVERS:
        signal.connect(receiver)


def disconnect() -> None:
    """Log no more events."""
    for signal, receiver in _RECEIVERS:
        signal.disconnect(receiver)


def _receiver(level: int, text: str) -> Callable[..., None]:
    def receive(_sender: Any, /, **fields: Any) -> None:
        if _logger.isEnabledFor(level):
            failure: Failure | None = fields.pop("failure", None)
            if failure is not None:
                fields |= {"error_class": failure.error_class, "error": first_line(str(failure)), "traceback": failure.traceback}
            # Not log(): looking for the caller, who is always this line, costs a third of the whole.
            _logger.handle(_logger.makeRecord(_logger.name, level, __file__, 0, text, (fields,), None, extra=fields))

    return receive


_RECEIVERS = tuple((signal, _receiver(level, text)) for signal, level, text in LINES)

# --- the task on every other record -----------------------------------------------------------------------------------

FIELDS = ("task_id", "task_type", "attempt")

trace_fields: Callable[[], Mapping[str, str]] | None = None
"""Gives the ids of the current span; None while nothing is traced."""


def task_fields() -> dict[str, Any]:
    """Return what is to be known of the task that runs here: its id, type and attempt, and the trace's ids; nothing outside of tasks.

    Example:
        >>> structlog.configure(processors=[lambda _, __, event: event | task_fields(), structlog.processors.JSONRenderer()])
    """
    context = running.get(None)
    if context is None:
        return {}
    fields: dict[str, Any] = {"task_id": context.task_id, "task_type": context.type, "attempt": context.attempt}
    return fields if trace_fields is None else {**fields, **trace_fields()}


class TaskFields(logging.Filter):
    """Gives every record that is made inside a running task its ``task_id``, ``task_type`` and ``attempt``, and none to others.

    With tracing it gives ``trace_id`` and ``span_id``, too, also to the lines of events.

    It goes on a handler: on a logger it would not see what that logger's children log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        if not hasattr(record, "task_id"):
            vars(record).update(task_fields())
        elif trace_fields is not None:
            vars(record).update(trace_fields())
        return True


# --- a handler for programs of which logging is nobody else's affair --------------------------------------------------


class TextLines(logging.Formatter):
    """Time, level, logger and message; before the message the task, where the message does not name it itself."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(task)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        in_task = record.name != _logger.name and all(hasattr(record, name) for name in FIELDS)
        record.task = "task {task_id} ({task_type}), attempt {attempt}: ".format_map(vars(record)) if in_task else ""
        return super().format(record)


class JsonLines(logging.Formatter):
    """Each record as one JSON object on one line: time, level, logger, message and whatever ``extra`` carried."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _OF_EVERY_RECORD}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "task", "taskName"}


def configure(level: int | None = None, *, as_json: bool = False) -> bool:
    """Log to stderr from ``level``, by default INFO, unless the host has given the root logger or the engine's a handler.

    Returns:
        Whether it did. If not, a ``level`` that is given is that of the engine's loggers alone.
    """
    root, own = logging.getLogger(), logging.getLogger("flask_taskengine")
    if level is not None:
        own.setLevel(level)
    if root.handlers or own.handlers:
        return False
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(TaskFields())
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root.addHandler(handler)
    root.setLevel(logging.INFO if level is None else level)
    alembic = logging.getLogger("alembic")
    if alembic.level == logging.NOTSET:
        # It tells at INFO which of its own plugins it has found.
        alembic.setLevel(logging.WARNING)
    return True

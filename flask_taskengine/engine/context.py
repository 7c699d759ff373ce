"""What a handler is told about the attempt it is running."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime

from .schedule_context import ScheduleContext

_logger = logging.getLogger("flask_taskengine.task")


@dataclass(slots=True, kw_only=True, eq=False)
class TaskContext:
    """The attempt that a handler is running; also reached as ``current_task``."""

    task_id: int
    type: str
    attempt: int
    """From 1."""
    max_attempts: int | None
    """``None``: retried for ever."""
    token: int
    """The fencing token: higher for every later claim of this task, for external systems that can refuse the older one."""
    idempotency_key: str | None
    enqueued_at: datetime
    deadline: float | None
    """On the clock of ``time.monotonic``; ``None`` without a timeout."""
    schedule: ScheduleContext | None = None
    """What a schedule's handler is told beside the rest; ``None`` for any other task."""
    logger: logging.LoggerAdapter[logging.Logger] = field(init=False)
    cancel_event: threading.Event = field(default_factory=threading.Event, repr=False)
    lease_lost_event: threading.Event = field(default_factory=threading.Event, repr=False)
    on_progress: Callable[[int, int, float, float | None, str | None], None] | None = field(default=None, repr=False)
    """Takes the id, the token and the report."""

    def __post_init__(self) -> None:
        extra = {"task_id": self.task_id, "task_type": self.type, "attempt": self.attempt}
        self.logger = logging.LoggerAdapter(_logger, extra)

    @property
    def cancelled(self) -> bool:
        """Whether a cancel was asked for; a long handler looks here and returns."""
        return self.cancel_event.is_set()

    @property
    def lease_lost(self) -> bool:
        """Whether another node may run this task by now: nothing that this attempt writes will be kept."""
        return self.lease_lost_event.is_set()

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the handler is; kept outside its transaction, at most once a second. Call it as often as you like.

        Args:
            done: so much of the work, in any unit.
            total: all of it, in the same unit; None where that is not known.
            note: a few words for whoever watches.
        """
        if self.on_progress is not None:
            self.on_progress(self.task_id, self.token, done, total, note)


running: ContextVar[TaskContext] = ContextVar("flask_taskengine_running")
"""The context of the attempt that this thread runs."""

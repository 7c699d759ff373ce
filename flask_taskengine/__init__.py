"""Durable tasks for Flask in the app's own database, enqueued in the caller's own transaction."""

from .domain.backoff import Backoff
from .domain.errors import (
    ConfigError,
    DuplicateTypeError,
    InvalidArgument,
    KeyBusyError,
    LeaseLostError,
    PayloadError,
    Reject,
    Retry,
    ScheduleConflict,
    ScheduleNotFound,
    Snooze,
    TaskCancelled,
    TaskEngineError,
    TaskInterrupt,
    TaskNotFound,
    TaskStateError,
    TaskTimedOut,
)
from .domain.limits import Limits
from .domain.retry import RetryPolicy
from .domain.schedule import Dynamic, FixedDelay, FixedRate
from .domain.states import TaskStatus
from .domain.task import Enqueued, Task
from .engine.context import TaskContext
from .engine.cron import Cron
from .engine.explain import Explanation
from .engine.processor import TaskProcessor
from .engine.schedule_context import ScheduleContext
from .engine.scheduled import Schedule
from .extension import TaskEngine
from .runtime.run import current_task

__all__ = [
    "Backoff",
    "ConfigError",
    "Cron",
    "DuplicateTypeError",
    "Dynamic",
    "Enqueued",
    "Explanation",
    "FixedDelay",
    "FixedRate",
    "InvalidArgument",
    "KeyBusyError",
    "LeaseLostError",
    "Limits",
    "PayloadError",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "ScheduleConflict",
    "ScheduleContext",
    "ScheduleNotFound",
    "Snooze",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskEngine",
    "TaskEngineError",
    "TaskInterrupt",
    "TaskNotFound",
    "TaskProcessor",
    "TaskStateError",
    "TaskStatus",
    "TaskTimedOut",
    "current_task",
]

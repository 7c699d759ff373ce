"""Durable tasks for Flask in the app's own database, enqueued in the caller's own transaction."""

from .domain.errors import (
    ConfigError,
    DuplicateTypeError,
    InvalidArgument,
    KeyBusyError,
    LeaseLostError,
    PayloadError,
    Reject,
    Retry,
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
from .domain.states import TaskStatus
from .domain.task import Enqueued, Task
from .engine.context import TaskContext
from .engine.explain import Explanation
from .engine.processor import TaskProcessor
from .extension import TaskEngine
from .runtime.run import current_task

__all__ = [
    "ConfigError",
    "DuplicateTypeError",
    "Enqueued",
    "Explanation",
    "InvalidArgument",
    "KeyBusyError",
    "LeaseLostError",
    "Limits",
    "PayloadError",
    "Reject",
    "Retry",
    "RetryPolicy",
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

"""Every error the engine raises, and the exceptions with which a handler ends its attempt."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from .durations import seconds, spoken


def _as_it_was(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class _Portable:
    """Copies and pickles an exception without calling its ``__init__``, whose arguments are not those of ``args``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_it_was, (type(self), self.args, self.__dict__)  # type: ignore[attr-defined]


class TaskEngineError(_Portable, Exception):
    """Root of every error that the engine raises."""


class ConfigError(TaskEngineError):
    """The settings, a processor or the deployment are wrong; ``faults`` lists every fault found."""

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class InvalidArgument(TaskEngineError, ValueError):
    """An argument of a verb is wrong; nothing was written."""


class PayloadError(TaskEngineError):
    """A payload can not be written or read; ``faults`` maps the path of each fault to what is wrong there."""

    def __init__(self, task_type: str, faults: Mapping[str, str]) -> None:
        self.task_type = task_type
        self.faults: dict[str, str] = dict(faults)
        listed = "; ".join(f"{path}: {fault}" for path, fault in self.faults.items())
        super().__init__(f"payload of task type {task_type!r}: {listed}")


class DuplicateTypeError(ConfigError):
    """Two processors were registered for one task type."""


class TaskNotFound(TaskEngineError):
    """No task has this id: it never existed, was rolled back, or retention has removed it."""

    def __init__(self, task_id: int) -> None:
        self.task_id = task_id
        super().__init__(f"no task has the id {task_id}: it never existed, was rolled back, or has been deleted or archived")


class TaskStateError(TaskEngineError):
    """The task's status does not allow what was asked."""

    def __init__(self, task_id: int, status: str, verb: str, allowed: str) -> None:
        self.task_id = task_id
        self.status = status
        super().__init__(f"task {task_id} is {status}: it can not be {verb}, only a task that is {allowed} can")


class ScheduleNotFound(TaskEngineError):
    """No schedule has this name."""

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        self.name = name
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else "`flask taskengine schedules list` shows those that exist"
        super().__init__(f"no schedule has the name {name!r}: {hint}")


class ScheduleConflict(TaskEngineError):
    """The schedule does not allow what was asked; nothing was changed."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        super().__init__(f"schedule {name!r}: {reason}")


class KeyBusyError(TaskEngineError):
    """Another open transaction holds this idempotency key; nothing was written, the caller's transaction is still usable."""

    def __init__(self, idempotency_key: str, reason: str) -> None:
        self.idempotency_key = idempotency_key
        super().__init__(f"idempotency key {idempotency_key!r}: {reason}")


class LeaseLostError(TaskEngineError):
    """This node no longer holds the task: its lease ended, so the transaction of this attempt is rolled back."""

    def __init__(self, task_id: int) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id}: the lease of this attempt is lost, its writes are rolled back")


class Reject(Exception):
    """Raised by a handler: this task can never succeed. It becomes FAILED at once, without a retry."""


class Retry(_Portable, Exception):
    """Raised by a handler: the attempt failed and counts; try again ``after`` this delay instead of the policy's backoff.

    Args:
        after: seconds, a ``timedelta`` or a text such as ``"5m"``.
        reason: stored as the error of the attempt.

    Raises:
        ValueError: ``after`` is no duration.
    """

    def __init__(self, after: timedelta | float | str, reason: str = "the handler asked for a retry") -> None:
        self.after = seconds(after)
        super().__init__(reason)


class Snooze(_Portable, Exception):
    """Raised by a handler: not yet. The attempt does not count; the task is due again ``after`` this delay.

    Args:
        after: seconds, a ``timedelta`` or a text such as ``"5m"``.

    Raises:
        ValueError: ``after`` is no duration.
    """

    def __init__(self, after: timedelta | float | str) -> None:
        self.after = seconds(after)
        super().__init__(f"snoozed for {spoken(self.after)}")


class TaskInterrupt(BaseException):
    """Raised inside a handler's thread to end it; not an ``Exception``, so that ``except Exception`` lets it pass."""


class TaskTimedOut(TaskInterrupt):
    """The handler overran its timeout."""


class TaskCancelled(TaskInterrupt):
    """A person or the code asked for the task to be cancelled."""


class TaskLeaseLost(TaskInterrupt):
    """The node lost its lease while the handler ran."""


class WorkerStopping(TaskInterrupt):
    """The worker's shutdown time-out is over; the task is released uncounted."""

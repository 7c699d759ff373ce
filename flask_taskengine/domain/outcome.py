"""What becomes of a task when an attempt ends: the only place that decides it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from .backoff import Backoff
from .durations import spoken
from .occurrence import OccurrenceEnd
from .retry import RetryPolicy
from .states import TaskStatus


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of an error: already text that any database can store."""

    error_class: str
    message: str
    traceback: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.error_class}: {self.message}" if self.message else self.error_class


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned; ``result`` is JSON text where the processor stores results."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised; ``after`` is the delay that it asked for with ``Retry``."""

    failure: Failure
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The handler raised ``Reject``, or its payload can not be read."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler raised ``Snooze``."""

    after: float


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The handler overran its timeout (seconds)."""

    timeout: float
    traceback: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Orphaned:
    """The node that ran it died or lost its lease; ``why`` is a sentence for the person who reads ``last_error``."""

    why: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker shut down, or the cancel interrupt ended the handler, before it had an end of its own."""


Ending = Returned | Raised | Rejected | Snoozed | TimedOut | Orphaned | Interrupted


class Verdict(StrEnum):
    """What happened to the task, in the words of the signals."""

    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the end of an attempt writes to the row."""

    verdict: Verdict
    status: TaskStatus
    delay: float | None = None
    """Seconds until it is due again; ``None`` leaves ``available_at`` as it is, so a released task keeps its place."""
    counted: bool = True
    """False gives the attempt back."""
    failure: Failure | None = None
    result: str | None = None
    """JSON text."""
    occurrence: OccurrenceEnd | None = None
    """Of the task of a schedule."""


def decide(
    ending: Ending, *, attempts: int, max_attempts: int | None, policy: RetryPolicy | Backoff, cancel_requested: bool, rng: random.Random
) -> Outcome:
    """Decide what becomes of a task whose attempt number ``attempts`` ended so.

    Args:
        max_attempts: the row's own, which wins over the policy's.
        cancel_requested: whether the row carries a cancel request; it wins over every other ending.
    """
    if cancel_requested:
        return Outcome(Verdict.CANCELLED, TaskStatus.CANCELLED, failure=failure_of(ending))
    match ending:
        case Returned(result):
            return Outcome(Verdict.SUCCEEDED, TaskStatus.SUCCEEDED, result=result)
        case Rejected(failure):
            return Outcome(Verdict.FAILED, TaskStatus.FAILED, failure=failure)
        case Snoozed(after):
            return Outcome(Verdict.SNOOZED, TaskStatus.PENDING, delay=after, counted=False)
        case Interrupted():
            return Outcome(Verdict.RELEASED, TaskStatus.PENDING, counted=False)
        case Raised() | TimedOut() | Orphaned():
            limit = policy.max_attempts if max_attempts is None else max_attempts
            if limit is not None and attempts >= limit:
                return Outcome(Verdict.DEAD, TaskStatus.DEAD, failure=failure_of(ending))
            asked = ending.after if isinstance(ending, Raised) else None
            delay = policy.backoff(attempts, rng) if asked is None else asked
            return Outcome(Verdict.RETRIED, TaskStatus.PENDING, delay=delay, failure=failure_of(ending))
        case _ as never:
            assert_never(never)


def failure_of(ending: Ending) -> Failure | None:
    """Return what an ending leaves in ``last_error`` and in the history of failed attempts, if anything."""
    match ending:
        case Raised(failure) | Rejected(failure):
            return failure
        case TimedOut(timeout, traceback):
            return Failure("TaskTimedOut", f"timed out after {spoken(timeout)}", traceback)
        case Orphaned(why):
            return Failure("LeaseLostError", why)
        case Returned() | Snoozed() | Interrupted():
            return None
        case _ as never:
            assert_never(never)

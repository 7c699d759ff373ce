"""A task as it is carried from the row to the handler."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ParamSpec, Protocol, TypeVar

from .states import TaskStatus

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Unreadable(str):
    """The stored text of a JSON column that can not be read: corrupt, nested too deeply, or with a number of thousands of digits."""

    __slots__ = ("why",)
    why: str

    @classmethod
    def because(cls, text: str, why: str) -> Unreadable:
        """Return a text with the reason why it can not be read."""
        unreadable = cls(text)
        unreadable.why = why
        return unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of the task table; times are aware and in UTC, by the database's clock.

    Its ``repr`` leaves out what a payload may carry, so that a log line with a task in it tells no secret.
    """

    id: int
    type: str
    payload: Any = field(repr=False, hash=False)
    status: TaskStatus
    priority: int
    """Higher runs first."""
    attempts: int
    """Attempts begun so far; raised by the claim."""
    max_attempts: int | None
    """``None``: the policy of the type decides."""
    available_at: datetime
    """Not before this."""
    created_at: datetime
    updated_at: datetime
    claimed_at: datetime | None
    claimed_by: str | None
    """The node that runs it, or ran it last."""
    claims: int
    """The fencing token: raised by every claim, never lowered."""
    cancel_requested_at: datetime | None
    finished_at: datetime | None
    """Set exactly when the task has ended."""
    idempotency_key: str | None
    last_error: str | None = field(repr=False)
    trace_context: dict[str, str] | None = field(repr=False, hash=False)
    result: Any = field(repr=False, hash=False)
    progress: dict[str, Any] | None = field(repr=False, hash=False)
    """What the handler last said of how far it is: ``done``, ``total``, ``note``."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim hands to the executor: the columns that a run needs."""

    id: int
    type: str
    payload: Any = field(repr=False, hash=False)
    priority: int
    attempts: int
    max_attempts: int | None
    available_at: datetime
    created_at: datetime
    claimed_at: datetime
    claims: int
    idempotency_key: str | None
    trace_context: str | None = field(repr=False, hash=False)
    """JSON text, as it is stored: only a trace reads it."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What ``enqueue`` returns."""

    id: int
    """Known before the commit."""
    created: bool
    """False where the idempotency key existed: ``id`` is then the existing task's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """What is to be written for one task."""

    type: str
    payload: Any = field(repr=False)
    """What the caller gave, until the codec has made JSON text of it."""
    priority: int = 0
    idempotency_key: str | None = None
    max_attempts: int | None = None
    available_at: datetime | None = None
    delay: float | None = None
    """Seconds after the database's now; excludes ``available_at``."""
    trace_context: str | None = None
    """JSON text."""


class TaskFunction(Protocol[P, R_co]):
    """A function that ``engine.task`` has made the processor of a type."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, without any task."""

    def enqueue(self, payload: Any = None, **options: Any) -> Enqueued:
        """Write a task of this type, as ``engine.enqueue`` does."""

"""The processors of one app, by task type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from ..domain.errors import DuplicateTypeError
from ..domain.limits import Limits
from ..domain.retry import RetryPolicy
from .context import TaskContext
from .payload import PayloadCodec

LONGEST_TYPE = 255
"""Characters; the width of the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What runs the tasks of one type, and how; ``None`` or ``...`` leaves an option to the settings."""

    type: str
    call: Callable[[Any, TaskContext], Any]
    """Takes the payload as the codec has read it, whatever parameters the handler has."""
    codec: PayloadCodec
    place: str
    """Where the handler is written, for people."""
    retry: RetryPolicy | None = None
    timeout: float | EllipsisType | None = ...
    """Seconds; ``None`` for no timeout at all."""
    limits: Limits | None = None
    isolation: str = "thread"
    store_result: bool = False


class Registry:
    """The processors of one app. Filled while the app is set up, read by many threads afterwards."""

    def __init__(self) -> None:
        self._processors: dict[str, Processor] = {}

    def add(self, processor: Processor) -> None:
        """Add a processor.

        Raises:
            DuplicateTypeError: its task type has one already, were it the very same function.
        """
        known = self._processors.setdefault(processor.type, processor)
        if known is not processor:
            raise DuplicateTypeError(_duplicate(processor, known))

    def get(self, task_type: str) -> Processor | None:
        """Return the processor of a task type, if this app has one."""
        return self._processors.get(task_type)

    def types(self) -> tuple[str, ...]:
        """Return the known task types, sorted."""
        return tuple(sorted(self._processors))

    def __contains__(self, task_type: object) -> bool:
        return task_type in self._processors

    def __len__(self) -> int:
        return len(self._processors)


def type_fault(task_type: object) -> str | None:
    """Return what is wrong with a task type's name, if anything."""
    name = f"task type {task_type!r:.80}"
    if not isinstance(task_type, str):
        return f"{name} is no text: give a name such as 'email.send'"
    if not task_type:
        return "the task type is empty: give a name such as 'email.send'"
    if task_type != task_type.strip():
        return f"{name} begins or ends with white space: remove it"
    if len(task_type) > LONGEST_TYPE:
        return f"{name} has {len(task_type)} characters: {LONGEST_TYPE} are the most"
    if not task_type.isprintable():
        return f"{name} holds characters that can not be printed: use letters, digits, dots and dashes"
    if task_type == "*":
        return "the task type '*' means every type: give a name such as 'email.send'"
    return None


def _duplicate(processor: Processor, known: Processor) -> str:
    if processor.place == known.place:
        why = "registered twice by " + known.place
        remedy = "make the engine where its tasks are registered (both at module level, or both in the app factory), and import once"
    else:
        why = f"registered by {known.place} and by {processor.place}"
        remedy = "give one of them another name"
    return f"task type {processor.type!r} is {why}: {remedy}"

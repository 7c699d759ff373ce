"""What a task's payload is in the database, and what the handler gets: plain JSON, a typed value, or what a Schema loads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .faults import Faults, payload_error
from .jsonform import json_text
from .typed import form_of

DEFAULT_MAX_BYTES = 1024 * 1024
"""What ``MAX_PAYLOAD`` is unless it is set."""

_ABSENT = "None given, this task type needs a payload"


class PayloadCodec(Protocol):
    """Writes and reads the payloads of one task type."""

    def dump(self, value: Any, max_bytes: int | None = None) -> str | None:
        """Return the JSON text to store; ``None`` (SQL NULL) for the payload ``None``.

        Args:
            max_bytes: ``MAX_PAYLOAD`` of the app that enqueues, where it differs from the one the codec was made with.

        Raises:
            PayloadError: it can not be stored, or the handler could not read it.
        """

    def load(self, value: Any) -> Any:
        """Return what the handler gets for this parsed JSON.

        Raises:
            PayloadError: this is no payload of the type.
        """


def plain_codec(task_type: str, max_bytes: int = DEFAULT_MAX_BYTES) -> PayloadCodec:
    """Return the codec for JSON as it comes, also for types that this app does not know."""
    return _Plain(task_type, max_bytes)


def codec_for(
    task_type: str, annotation: Any = None, max_bytes: int = DEFAULT_MAX_BYTES, *, localns: Mapping[str, Any] | None = None
) -> PayloadCodec:
    """Return the codec for a payload's annotation, or for a marshmallow Schema (class or instance).

    An annotation that JSON itself can express, such as ``dict[str, Any]`` or ``str``, is documentation: nothing is checked.

    Args:
        annotation: ``None`` for plain JSON.
        localns: names that annotations in text may use beside their module's.

    Raises:
        ConfigError: the annotation has no JSON form, or the Schema can not be made.
    """
    if annotation is None:
        return _Plain(task_type, max_bytes)
    if hasattr(annotation, "_declared_fields") and callable(getattr(annotation, "load", None)):
        from .schemas import SchemaCodec

        return SchemaCodec(task_type, annotation, max_bytes)
    form = form_of(annotation, f"payload of task type {task_type!r}", localns)
    if form.plain:
        return _Plain(task_type, max_bytes)
    return _Typed(task_type, max_bytes, form.read, form.classes, nullable="null" in form.kinds)


def dump_result(value: Any, max_bytes: int = DEFAULT_MAX_BYTES, *, task_type: str = "") -> str | None:
    """Return the JSON text of a handler's return value, in the forms of a payload; ``None`` for ``None``.

    Raises:
        PayloadError: the value has no JSON form or is too large.
    """
    if value is None:
        return None
    try:
        return json_text(value, max_bytes)
    except Faults as faults:
        raise payload_error(task_type, faults, "result") from None


@dataclasses.dataclass(frozen=True, slots=True)
class _Plain:
    task_type: str
    max_bytes: int

    def dump(self, value: Any, max_bytes: int | None = None) -> str | None:
        if value is None:
            return None
        try:
            return json_text(value, self.max_bytes if max_bytes is None else max_bytes)
        except Faults as faults:
            raise payload_error(self.task_type, faults) from None

    def load(self, value: Any) -> Any:
        return value


@dataclasses.dataclass(frozen=True, slots=True)
class _Typed:
    task_type: str
    max_bytes: int
    read: Callable[[Any], Any]
    classes: tuple[type, ...]
    """The dataclasses of which a payload may be an instance."""
    nullable: bool

    def dump(self, value: Any, max_bytes: int | None = None) -> str | None:
        if value is None and self.nullable:
            return None
        limit = self.max_bytes if max_bytes is None else max_bytes
        try:
            if value is None:
                raise Faults(_ABSENT)
            is_instance = isinstance(value, self.classes)
            if self.classes and dataclasses.is_dataclass(value) and not is_instance:
                names = " or ".join(cls.__name__ for cls in self.classes)
                raise Faults(f"{type(value).__name__} given: pass {names}, or a mapping of its fields")
            text = json_text(value, limit)
            read = self.read(json.loads(text))
            # A mapping is written again, so that defaults are those of the moment at which the task is enqueued.
            return text if is_instance else json_text(read, limit)
        except Faults as faults:
            raise payload_error(self.task_type, faults) from faults.__cause__

    def load(self, value: Any) -> Any:
        if value is None and self.nullable:
            return None
        try:
            if value is None:
                raise Faults(_ABSENT)
            return self.read(value)
        except Faults as faults:
            raise payload_error(self.task_type, faults) from faults.__cause__

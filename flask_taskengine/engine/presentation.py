"""How tasks are shown to people and programs: plain JSON values, secrets hidden, text that does nothing to a terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from ..domain.task import Task, Unreadable
from .scheduled import Schedule

HIDDEN = "***"

_NAMES = tuple(f.name for f in fields(Task))
_FROM_THE_HOST = ("payload", "result")


def task_fields(task: Task, redact: Collection[str] = ()) -> dict[str, Any]:
    """Return the columns of a task as JSON values.

    Args:
        redact: names of fields whose values are hidden, at any depth of the payload and the result.
    """
    shown = {name: plain(getattr(task, name)) for name in _NAMES}
    return shown | {name: redacted(shown[name], redact) for name in _FROM_THE_HOST}


def schedule_fields(schedule: Schedule, redact: Collection[str] = ()) -> dict[str, Any]:
    """Return what there is to say of a schedule as JSON values."""
    shown = {one.name: plain(getattr(schedule, one.name)) for one in fields(Schedule)}
    hidden = {name: redacted(shown[name], redact) for name in ("payload", "state")}
    return shown | hidden | {"definition": None if schedule.definition is None else schedule.definition.form()}


def plain(value: Any) -> Any:
    """Return a time as ISO 8601 in UTC, and any other value as it is."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value


def plain_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row, or what there is to say of something, with its times as texts."""
    return {name: plain(value) for name, value in values.items()}


def redacted(value: Any, names: Collection[str]) -> Any:
    """Return a JSON value in which every field of these names is hidden."""
    if isinstance(value, Unreadable):
        return HIDDEN if names else value
    if isinstance(value, Mapping):
        return {key: HIDDEN if key in names else redacted(inner, names) for key, inner in value.items()}
    return [redacted(inner, names) for inner in value] if isinstance(value, list) else value


def printable(text: str, keep: str = "\n\t") -> str:
    """Return the text with every control character and lone surrogate escaped, but those in ``keep``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text)


def first_line(text: str, longest: int = 300) -> str:
    """Return the first line that says something, printable and shortened."""
    line = printable(next((line.strip() for line in text.splitlines() if line.strip()), ""), keep="")
    return line if len(line) <= longest else f"{line[: longest - 1]}…"

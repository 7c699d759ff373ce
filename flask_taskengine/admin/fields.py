"""What is said to the API and what it says, as marshmallow schemas."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from marshmallow import Schema, ValidationError, fields, post_load, validate

from ..domain.states import TaskStatus
from ..engine.bulk import BATCH
from ..engine.enqueue import is_in_range
from ..store.search import Filter

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1
MOST_AT_ONCE = 10_000
"""Tasks that one call of a bulk act may change."""
MOST_OFFSET = 10_000
_LONGEST = 255
_LONGEST_SEARCH = 1000
_STATUSES = [status.value for status in TaskStatus]


def _storable(text: str) -> None:
    try:
        whole = "\0" not in text and bool(text.encode())
    except UnicodeEncodeError:
        whole = False
    if not whole and text:
        raise ValidationError("this text can not be stored: leave out NUL and halves of surrogate pairs")


def text(longest: int = _LONGEST, **options: Any) -> fields.String:
    """Return a field for text that every database can store."""
    return fields.String(validate=[validate.Length(1, longest), _storable], **options)


def whole(least: int, most: int, **options: Any) -> fields.Integer:
    """Return a field for a whole number."""
    return fields.Integer(validate=validate.Range(least, most), **options)


def moment(**options: Any) -> fields.AwareDateTime:
    """Return a field for a time with a time zone."""
    return fields.AwareDateTime(format="iso", validate=_tellable, **options)


def _tellable(when: datetime) -> None:
    if not is_in_range(when):
        raise ValidationError("in UTC this time lies outside of the years 1 to 9999")


class Several(fields.List[Any]):
    """Several values: the parameter is given again, or they stand in one with commas between."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> list[Any]:
        parts = value if isinstance(value, list) else [value]
        split = [one for part in parts for one in (part.split(",") if isinstance(part, str) else [part])]
        return list(super()._deserialize(split, attr, data, **kwargs))


# --- asked --------------------------------------------------------------------------------------------------------------


class FilterSchema(Schema):
    """Which tasks: those for which everything holds that is given."""

    status = Several(fields.String(validate=validate.OneOf(_STATUSES)))
    type = Several(text())
    priority = whole(-_INT32 - 1, _INT32)
    key = text()
    error = text(_LONGEST_SEARCH, metadata={"description": "Part of the last error, in any case."})
    payload_path = text(_LONGEST_SEARCH, metadata={"description": "Names that lead into the payload, with points between: customer.id"})
    payload_value = fields.Raw(metadata={"description": "The value there; in a query, JSON or plain text."})
    created_after = moment()
    created_before = moment()
    finished_after = moment()
    finished_before = moment()
    available_after = moment()
    available_before = moment()


def filter_of(given: dict[str, Any], redact: Collection[str], *, in_text: bool = False) -> Filter:
    """Take the parts of a filter out of what was given.

    Args:
        redact: fields of payloads that nobody may learn of, not by guessing either.
        in_text: the value in the payload is JSON or, where it is none, a text.

    Raises:
        ValidationError: a path without a value, a value without a path, or neither a text, a number nor a boolean.
    """
    said = {name: given.pop(name) for name in tuple(given) if name in FilterSchema().fields}
    statuses = tuple(TaskStatus(status) for status in said.pop("status", ()))
    path, has_value, value = said.pop("payload_path", None), "payload_value" in said, said.pop("payload_value", None)
    if (path is None) == has_value:
        raise ValidationError({"payload_path": ["give payload_path and payload_value together"]})
    if path is not None and not set(_path(path)).isdisjoint(redact):
        raise ValidationError({"payload_path": ["this field is hidden: nothing is searched in it"]})
    payload = None if path is None else (_path(path), _scalar(_read(value) if in_text else value))
    return Filter(statuses=statuses, types=tuple(said.pop("type", ())), payload=payload, **said)


def _path(text: str) -> tuple[str, ...]:
    names = tuple(text.split("."))
    if not all(names) or '"' in text:
        raise ValidationError({"payload_path": ['give names with points between, without quotes: "customer.id"']})
    return names


def _read(value: Any) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _scalar(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(value, (dict, list)) or (number and not (math.isfinite(value) and abs(value) <= _INT64)):
        raise ValidationError({"payload_value": ["give a text, a number, true, false or null"]})
    if isinstance(value, str):
        _storable(value)
    return value


class PageQuery(FilterSchema):
    """Which page of which tasks."""

    limit = whole(1, 500, load_default=50)
    offset = whole(0, MOST_OFFSET, load_default=0, metadata={"description": f"At most {MOST_OFFSET}: deeper pages by cursor."})
    cursor = fields.String(
        validate=validate.Regexp(r"^[0-9]{1,18}$", error="this is no cursor: give what `next` said"),
        metadata={"description": "What the last page said as next."},
    )


class ResetQuery(Schema):
    """Whether attempts are counted from 0 again."""

    reset_attempts = fields.Boolean(load_default=False)


class RetryDeadQuery(ResetQuery):
    """Which DEAD tasks."""

    type = text()


class NewTaskSchema(Schema):
    """A task to enqueue."""

    type = text(required=True)
    payload = fields.Raw(allow_none=True, load_default=None)
    priority = whole(-_INT32 - 1, _INT32)
    idempotency_key = text(allow_none=True)
    max_attempts = whole(1, _INT32, allow_none=True)
    available_at = moment(allow_none=True)

    @post_load
    def _without_none(self, said: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {name: value for name, value in said.items() if value is not None or name == "payload"}


class BulkSchema(Schema):
    """Which tasks, and how."""

    filter = fields.Nested(FilterSchema, load_default=dict)
    all = fields.Boolean(load_default=False, metadata={"description": "Needed for a filter that every task meets."})
    dry_run = fields.Boolean(load_default=False, metadata={"description": "Change nothing: say how many there are, and show some."})
    reset_attempts = fields.Boolean(load_default=False)
    limit = whole(1, MOST_AT_ONCE, load_default=MOST_AT_ONCE, metadata={"description": f"In transactions of {BATCH}."})


class PauseSchema(Schema):
    """Why."""

    reason = text(_LONGEST_SEARCH, allow_none=True, load_default=None)


class RunSchema(Schema):
    """How a schedule is run by hand."""

    move_next = fields.Boolean(load_default=False)


class GroupSchema(Schema):
    """How many of a group of dead tasks."""

    only_first = fields.Boolean(load_default=False, metadata={"description": "Try one before the rest."})

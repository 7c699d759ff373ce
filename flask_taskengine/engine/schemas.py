"""Payloads that a marshmallow Schema describes; imported only where a processor has one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from marshmallow import Schema, ValidationError

from ..domain.errors import ConfigError
from .faults import Faults, payload_error
from .jsonform import json_text

_JSON_TYPES = (Mapping, str, int, float, bytes, list, tuple, set, frozenset, type(None))


class SchemaCodec:
    """Writes what the Schema can load, and hands the handler what it loads.

    JSON values, mappings and lists of mappings are taken as what ``Schema.load`` takes, and are stored as they are. Any
    other object, or a list of such, goes through ``Schema.dump`` first, without the fields that are only dumped.
    """

    def __init__(self, task_type: str, schema: Schema | type[Schema], max_bytes: int) -> None:
        self.task_type = task_type
        self.schema = schema if isinstance(schema, Schema) else _made(schema, task_type)
        self.max_bytes = max_bytes

    def dump(self, value: Any, max_bytes: int | None = None) -> str | None:
        """Return the JSON text to store, once the Schema has loaded it as the worker will."""
        try:
            text = json_text(value if _is_json(value) else self._dumped(value), self.max_bytes if max_bytes is None else max_bytes)
            self._load(json.loads(text))
        except Faults as faults:
            raise payload_error(self.task_type, faults) from faults.__cause__
        return None if value is None else text

    def load(self, value: Any) -> Any:
        """Return what ``Schema.load`` makes of this parsed JSON."""
        try:
            return self._load(value)
        except Faults as faults:
            raise payload_error(self.task_type, faults) from faults.__cause__

    def _load(self, value: Any) -> Any:
        try:
            return self.schema.load(value)
        except ValidationError as error:
            raise Faults(_flat(error.messages)) from error
        except (ValueError, TypeError, AssertionError) as error:
            # From a post_load that makes an object of the data.
            raise Faults(str(error) or type(error).__name__) from error

    def _dumped(self, value: Any) -> Any:
        try:
            dumped = self.schema.dump(value)
        except (ValueError, TypeError, AttributeError) as error:
            raise Faults(f"{type(self.schema).__name__} can not dump it: {error}") from error
        only_dumped = {field.data_key or name for name, field in self.schema.fields.items() if field.dump_only}
        rows = [{key: row[key] for key in row if key not in only_dumped} for row in (dumped if self.schema.many else [dumped])]
        return rows if self.schema.many else rows[0]


def _made(cls: type[Schema], task_type: str) -> Schema:
    try:
        return cls()
    except Exception as error:
        raise ConfigError(f"task type {task_type!r}: {cls.__name__}() raised {error!r}: give schema= an instance") from error


def _is_json(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(isinstance(item, _JSON_TYPES) for item in value)
    return isinstance(value, _JSON_TYPES)


def _flat(messages: Any) -> dict[str, str]:
    """Turn marshmallow's nested messages into faults by path."""
    if isinstance(messages, dict):
        found: dict[str, str] = {}
        for step, inner in messages.items():
            found |= _flat(inner) if step == "_schema" else Faults(_flat(inner)).under(step if isinstance(step, int) else str(step))
        return found
    if isinstance(messages, list):
        return {"": " ".join(str(message) for message in messages)}
    return {"": str(messages)}

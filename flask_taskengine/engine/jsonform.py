"""The JSON form of Python values, and the text of it that every database can store.

================================  =====================================================================================
Python                            JSON
================================  =====================================================================================
``str int float bool None``       as they are; whole numbers of up to 4,300 digits; ``1`` and ``1.0`` stay different
``dict`` and other mappings       object; keys must be text
``list tuple set frozenset``      array; a set is sorted where its items can be
``datetime``                      text, ISO 8601; an aware one keeps its offset, a naive one stays naive
``date`` ``time``                 text, ISO 8601
``timedelta``                     seconds; exact to the microsecond up to 136 years
``Decimal``                       text, digit for digit
``UUID``                          text
``Enum``                          its value, in this form
``bytes`` ``bytearray``           text, base64
dataclass instance                object of its fields
================================  =====================================================================================

JSONB, PostgreSQL's column type, keeps values and types, but sorts the keys of objects and drops the sign of ``-0.0``.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import count, repeat
from typing import Any
from uuid import UUID

from .faults import Faults, each, step_to

MAX_DEPTH = 100
"""Levels of nesting. Fixed, since Python's limit depends on the caller's depth: a worker could fail to read what was written."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_EXPONENT = re.compile(r'"(?:[^"\\]++|\\.)*+"|-?[\d.]+e\+\d+')
_FEW_BITS = 10_000
"""A whole number of no more bits is within Python's limit of 4,300 digits."""


def json_text(value: Any, max_bytes: int) -> str:
    """Write a value as compact JSON text.

    Args:
        max_bytes: the most bytes that the text may have as UTF-8.

    Raises:
        Faults: the value has no JSON form, or no database could store it.
    """
    try:
        if not _is_plain(value, MAX_DEPTH):
            value = json_form(value)
        text = _write(value)
        if "e+" in text:
            text = _EXPONENT.sub(_spell_out, text)
        size = len(text) if text.isascii() else len(text.encode())
    except ValueError as error:
        # NaN, a lone surrogate, or too many digits: found without a path.
        json_form(value)
        raise Faults(f"can not be written as JSON: {error}") from error
    if "\\u0000" in text:
        json_form(value)
    if size > max_bytes:
        remedy = "store it elsewhere and pass its key, or raise TASKENGINE_MAX_PAYLOAD"
        raise Faults(f"{size:,} bytes of JSON, the limit is {max_bytes:,}: {remedy}")
    return text


def json_form(value: Any) -> Any:
    """Convert a value to what JSON knows: dicts with text keys, lists, text, numbers, booleans, None.

    Raises:
        Faults: a part of it has no JSON form, or holds text that no database can store.
    """
    return _Converter().convert(value)


def _is_plain(value: Any, depth: int) -> bool:
    """Tell whether the value consists of JSON's own types, since then it needs no conversion and no second look."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or (type(item) not in _SCALARS and (depth == 1 or not _is_plain(item, depth - 1))):
                return False
        return True
    if kind is list:
        for item in value:  # noqa: SIM110 - a generator costs twice as much, and this is on every enqueue's path.
            if type(item) not in _SCALARS and (depth == 1 or not _is_plain(item, depth - 1)):
                return False
        return True
    return kind in _SCALARS


def _spell_out(match: re.Match[str]) -> str:
    """Write ``1e+16`` without its exponent: JSONB keeps numbers as decimals and would give an integer back."""
    token = match[0]
    return token if token.startswith('"') else f"{Decimal(token):f}.0"


# --- the conversion -----------------------------------------------------------------------------------------------------


def _text(value: str) -> str:
    text = str.__str__(value)
    if "\0" in text:
        raise Faults(f"holds a NUL character (at {text.index(chr(0))}), which no database can store as text: remove it, or pass bytes")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = f"\\u{ord(text[error.start]):04x}"
            raise Faults(f"holds half a surrogate pair ({found} at {error.start}), which is no text: pass bytes, or replace it") from None
    return text


def _whole(value: int) -> int:
    if value.bit_length() > _FEW_BITS:
        try:
            int.__repr__(value)
        except ValueError:
            raise Faults("a whole number of more than 4,300 digits: pass it as bytes or in hexadecimal text") from None
    return int(value)


def _number(value: float) -> float:
    if not math.isfinite(value):
        raise Faults(f"{float(value)} is no JSON number: pass None, or text")
    return float(value)


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Faults(f"{value} is no JSON number: pass None, or text")
    return str(value)


def _seconds(value: timedelta) -> int | float:
    number = value.total_seconds()
    return int(number) if number.is_integer() else number


def _iso(value: date | time) -> str:
    return value.isoformat()


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode("ascii")


_LEAVES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, _text),
    (bool, bool),
    (int, _whole),
    (float, _number),
    (type(None), lambda _: None),
    (date, _iso),
    (time, _iso),
    (timedelta, _seconds),
    (Decimal, _decimal),
    (UUID, str),
    (bytes, _base64),
    (bytearray, _base64),
)
_EXACT_LEAVES = dict(_LEAVES) | {datetime: _iso}


class _Converter:
    """One conversion; knows which containers it is inside of."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def convert(self, value: Any) -> Any:
        kind = type(value)
        exact = _EXACT_LEAVES.get(kind)
        if exact is not None:
            return exact(value)
        if issubclass(kind, Enum):
            return self.convert(value.value)
        for leaf, form in _LEAVES:
            if issubclass(kind, leaf):
                return form(value)
        identity = id(value)
        if identity in self._open:
            raise Faults("contains itself")
        if len(self._open) >= MAX_DEPTH:
            raise Faults(f"nested deeper than {MAX_DEPTH} levels: pass a flatter value")
        self._open.add(identity)
        try:
            return self._container(value)
        finally:
            self._open.discard(identity)

    def _container(self, value: Any) -> Any:
        kind: Any = type(value)
        if issubclass(kind, dict):
            return self._object(value.items())
        if hasattr(kind, "__mapper__"):
            raise Faults(f"an instance of the mapped class {kind.__name__}: pass its id, and load it where it is needed")
        if issubclass(kind, (list, tuple)):
            return each(zip(count(), repeat(self.convert), value))
        if issubclass(kind, (set, frozenset)):
            return each(zip(count(), repeat(self.convert), _in_order(value)))
        if hasattr(kind, "__dataclass_fields__"):
            names = _field_names(kind)
            return dict(zip(names, each([(name, self.convert, getattr(value, name)) for name in names]), strict=True))
        if isinstance(value, Mapping):
            return self._object(value.items())
        raise Faults(f"{kind.__qualname__} has no JSON form: convert it before you pass it")

    def _object(self, items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
        pairs = list(items)
        names: list[str] = []
        found: dict[str, str] = {}
        for key, _ in pairs:
            try:
                names.append(_key(key))
            except Faults as faults:
                found |= faults.found
        if found:
            raise Faults(found)
        return dict(zip(names, each([(name, self.convert, item) for name, (_, item) in zip(names, pairs, strict=True)]), strict=True))


@lru_cache(maxsize=1024)
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _in_order(items: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        return list(items)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise Faults({f"[{key!r:.64}]": f"the key is of type {type(key).__qualname__}, JSON keys are text: pass str(key)"})
    try:
        return _text(key)
    except Faults as faults:
        raise Faults({step_to(key): f"the key {faults.found['']}"}) from None

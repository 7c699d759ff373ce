"""Strict readers of single JSON forms: ``"5"`` is no integer, and ``True`` is none either."""

from __future__ import annotations

import base64
import dataclasses
import enum
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import reduce
from itertools import count, repeat
from operator import or_
from typing import Any
from uuid import UUID

from .faults import Faults, each, step_to

Reader = Callable[[Any], Any]

MOST_NAMES = 20
"""Of a choice, listed in its fault."""

KINDS = {str: "text", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """How the JSON form of one annotation is read."""

    read: Reader
    """Raises ``Faults``."""
    kinds: frozenset[str]
    """The kinds of JSON value that it may be able to read."""
    plain: bool = False
    """Whether the annotation says no more than JSON itself does."""
    classes: tuple[type, ...] = ()
    """The dataclasses of which it makes instances."""


# --- leaves -------------------------------------------------------------------------------------------------------------


def exactly(kind: type, fault: str) -> Form:
    """Read a value of one of JSON's own types."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise Faults(fault)
        return value

    return Form(read, frozenset({KINDS[kind]}), plain=True)


def _from_text(parse: Callable[[str], Any], fault: str) -> Form:
    def read(value: Any) -> Any:
        if type(value) is not str:
            raise Faults(fault)
        try:
            return parse(value)
        except ValueError:
            raise Faults(fault) from None

    return Form(read, frozenset({"text"}))


def _read_float(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise Faults("Not a valid number.")
    try:
        return float(value)
    except OverflowError:
        raise Faults("Not a valid number: too large for a float.") from None


def _read_timedelta(value: Any) -> timedelta:
    if type(value) is not float and type(value) is not int:
        raise Faults("Not a valid duration: give seconds.")
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise Faults("Not a valid duration: too long.") from None


def _read_decimal(value: Any) -> Decimal:
    fault = 'Not a valid decimal: give text such as "19.90".'
    if type(value) is not str and type(value) is not int:
        raise Faults(fault)
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise Faults(fault) from None
    if not number.is_finite():
        raise Faults(fault)
    return number


def _parse_datetime(text: str) -> datetime:
    # fromisoformat would make midnight of a mere date.
    if "T" not in text and " " not in text:
        raise ValueError(text)
    return datetime.fromisoformat(text)


def _parse_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _read_any(value: Any) -> Any:
    return value


ANY = Form(_read_any, frozenset(KINDS.values()), plain=True)
STRICT_FLOAT = exactly(float, "Not a valid number.")

LEAVES: dict[Any, Form] = {
    Any: ANY,
    object: ANY,
    str: exactly(str, "Not a valid string."),
    int: exactly(int, "Not a valid integer."),
    bool: exactly(bool, "Not a valid boolean."),
    type(None): exactly(type(None), "Must be null."),
    float: Form(_read_float, frozenset({"integer", "number"}), plain=True),
    timedelta: Form(_read_timedelta, frozenset({"integer", "number"})),
    Decimal: Form(_read_decimal, frozenset({"integer", "text"})),
    datetime: _from_text(_parse_datetime, 'Not a valid datetime: give ISO 8601 such as "2026-03-01T12:00:00+01:00".'),
    date: _from_text(date.fromisoformat, 'Not a valid date: give ISO 8601 such as "2026-03-01".'),
    time: _from_text(time.fromisoformat, 'Not a valid time: give ISO 8601 such as "12:30:00".'),
    UUID: _from_text(UUID, "Not a valid UUID."),
    bytes: _from_text(_parse_base64, "Not valid base64."),
}


def choice(members: Mapping[tuple[type, Any], Any]) -> Form:
    """Read one of a few values; they are keyed with their type, since to Python ``True == 1 == 1.0``."""
    names = [repr(value) for _, value in members]
    fault = f"Must be one of: {', '.join(names[:MOST_NAMES])}{', …' if len(names) > MOST_NAMES else '.'}"

    def read(value: Any) -> Any:
        try:
            return members[type(value), value]
        except (KeyError, TypeError):
            raise Faults(fault) from None

    return Form(read, frozenset(KINDS[kind] for kind, _ in members))


def flag(kind: type[enum.Flag]) -> Form:
    """Read a combination of flags from its whole number."""
    every = reduce(or_, (member.value for member in kind), 0)
    strict = getattr(kind, "_boundary_", None) is enum.FlagBoundary.STRICT

    def read(value: Any) -> Any:
        if type(value) is not int:
            raise Faults("Not a valid integer.")
        # Python 3.11.2 makes a member of a number above all flags, although it should not.
        if strict and value >= 0 and value & ~every:
            raise Faults(f"Not a combination of {kind.__name__}.")
        try:
            return kind(value)
        except ValueError:
            raise Faults(f"Not a combination of {kind.__name__}.") from None

    return Form(read, frozenset({"integer"}))


# --- containers ---------------------------------------------------------------------------------------------------------


def array(item: Form, make: Callable[[list[Any]], Any]) -> Form:
    """Read a list, and make a list, tuple or set of it."""
    read_item = item.read

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise Faults("Not a valid list.")
        return make(each(zip(count(), repeat(read_item), value)))

    return Form(read, frozenset({"array"}), plain=item.plain and make is list)


def fixed_array(items: list[Form]) -> Form:
    """Read a tuple whose items have a type each."""
    readers = [form.read for form in items]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise Faults(f"Not a valid list of {len(readers)}.")
        return tuple(each(zip(count(), readers, value)))

    return Form(read, frozenset({"array"}))


def mapping(item: Form) -> Form:
    """Read an object with any keys."""
    read_item = item.read

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise Faults("Not a valid mapping.")
        return dict(zip(value, each(zip(value, repeat(read_item), value.values())), strict=True))

    return Form(read, frozenset({"object"}), plain=item.plain)


def union(forms: list[Form]) -> Form:
    """Read by the kind of the JSON value; no two forms may read the same kind."""
    by_kind = {kind: form.read for form in forms for kind in form.kinds}
    fault = f"Must be one of: {', '.join(sorted(by_kind))}."

    def read(value: Any) -> Any:
        read_one = by_kind.get(KINDS[type(value)])
        if read_one is None:
            raise Faults(fault)
        return read_one(value)

    classes = tuple(cls for form in forms for cls in form.classes)
    return Form(read, frozenset(by_kind), all(form.plain for form in forms), classes)


def instance(cls: Any, fields: Mapping[str, tuple[dataclasses.Field[Any], Form]]) -> Reader:
    """Read a dataclass from the object of its fields."""
    readers = {name: form.read for name, (field, form) in fields.items() if field.init}
    required = frozenset(name for name in readers if _is_required(fields[name][0]))
    # Derived fields are part of what is written, and made anew by the dataclass.
    known = frozenset(fields)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise Faults(f"Not a valid mapping with the fields of {cls.__name__}.")
        arguments: dict[str, Any] = {}
        found: dict[str, str] = {}
        for name, read_field in readers.items():
            if name in value:
                try:
                    arguments[name] = read_field(value[name])
                except Faults as faults:
                    found |= faults.under(name)
        if not required <= value.keys() <= known:
            found |= {step_to(name): "Missing data for required field." for name in readers if name in required - value.keys()}
            found |= {step_to(name): "Unknown field." for name in value if name not in known}
        if found:
            raise Faults(found)
        try:
            return cls(**arguments)
        except (ValueError, TypeError, AssertionError) as error:
            raise Faults(str(error) or type(error).__name__) from error

    return read


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING

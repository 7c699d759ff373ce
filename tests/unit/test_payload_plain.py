"""Payloads without a type: JSON as it comes, and the documented forms of Python's values."""

from __future__ import annotations

import dataclasses
import enum
import json
import string
import sys
from collections import OrderedDict, UserDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from flask_taskengine.domain.errors import PayloadError
from flask_taskengine.engine.jsonform import MAX_DEPTH
from flask_taskengine.engine.payload import DEFAULT_MAX_BYTES, dump_result, plain_codec

CODEC = plain_codec("email.send")

storable_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable_text,
    lambda inner: st.lists(inner) | st.dictionaries(storable_text, inner),
)


class Color(enum.Enum):
    """Values of two kinds."""

    RED = "red"
    MANY = ("red", 1)


class Level(enum.IntEnum):
    """An enum that is a number, too."""

    HIGH = 3


class Key(enum.StrEnum):
    """An enum that is text, too."""

    NAME = "name"


class Plain(str, enum.Enum):  # noqa: UP042 - its str() is another one than StrEnum's.
    """The older way to write such an enum."""

    NAME = "name"


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int
    y: Any


class Pair(NamedTuple):
    """A tuple with names."""

    a: int
    b: int


class Base(DeclarativeBase):
    """The host's models."""


class Order(Base):
    """A mapped class."""

    __tablename__ = "order"
    id: Mapped[int] = mapped_column(sa.Integer, primary_key=True)


class Invoice(MappedAsDataclass, Base):
    """A mapped class that is a dataclass, too."""

    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(sa.Integer, primary_key=True)


def written(value: Any) -> Any:
    """Return the parsed text of a payload."""
    text = CODEC.dump(value)
    assert text is not None
    return json.loads(text)


def faults_of(value: Any) -> dict[str, str]:
    """Return the faults for which a payload is refused."""
    with pytest.raises(PayloadError) as caught:
        CODEC.dump(value)
    assert caught.value.task_type == "email.send"
    return caught.value.faults


# --- what is kept -------------------------------------------------------------------------------------------------------


@given(json_values.filter(lambda value: value is not None))
def test_any_json_value_comes_back_the_same(value: Any) -> None:
    """A JSON value is read as it was written, types, key order and signs included, from compact UTF-8."""
    text = CODEC.dump(value)
    assert text is not None
    text.encode()
    assert repr(CODEC.load(json.loads(text))) == repr(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_have_no_exponent_that_a_decimal_column_would_make_an_integer(number: float) -> None:
    """A large float is written with all digits and a decimal point: JSONB would give `1e+16` back as an integer."""
    text = CODEC.dump([number])
    assert text is not None
    assert "e+" not in text
    assert repr(json.loads(text)) == repr([number])


def test_an_exponent_inside_text_is_left_alone() -> None:
    """Only numbers are spelt out, not what looks like one inside of text, however it is quoted."""
    value = {"1e+16": '"1e+16', "a\\": "\\1e+17\\", "b": [1e16, -2.5e20, "x1e+3"]}
    assert CODEC.dump(value) == ('{"1e+16":"\\"1e+16","a\\\\":"\\\\1e+17\\\\","b":[10000000000000000.0,-250000000000000000000.0,"x1e+3"]}')


def test_one_and_one_point_zero_stay_different() -> None:
    """Neither numbers nor booleans are taken for one another."""
    assert CODEC.dump([1, 1.0, True, "1"]) == '[1,1.0,true,"1"]'


def test_key_order_and_unicode_are_kept_in_compact_text() -> None:
    """The text is compact, has the keys in the order given, and unicode as it is."""
    assert CODEC.dump({"ö": "日本😀", "a": [1, 2]}) == '{"ö":"日本😀","a":[1,2]}'


def test_none_is_no_payload_at_all() -> None:
    """The payload None is SQL NULL, not the JSON text `null`."""
    assert CODEC.dump(None) is None
    assert CODEC.load(None) is None


@pytest.mark.parametrize("text", ["", "plain", "null", "5", '{"a": 1}', "\\u0000", "a\\u0000b"])
def test_text_stays_text(text: str) -> None:
    """A payload that is a text is that text, even where it looks like JSON or like an escaped NUL."""
    assert written(text) == text
    assert CODEC.load(text) == text


def test_whole_numbers_of_any_practical_size_are_kept() -> None:
    """A number beyond 64 bits is exact."""
    assert written([2**200, -(10**4000)]) == [2**200, -(10**4000)]


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (datetime(2026, 3, 1, 12, 30, 0, 5, tzinfo=UTC), "2026-03-01T12:30:00.000005+00:00"),
        (datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=45))), "2026-03-01T12:00:00+05:45"),
        (datetime(2026, 3, 1, 12), "2026-03-01T12:00:00"),  # noqa: DTZ001 - naive ones are what is tested.
        (date(2026, 3, 1), "2026-03-01"),
        (time(12, 30), "12:30:00"),
        (timedelta(minutes=1, milliseconds=500), 60.5),
        (timedelta(days=-1), -86400),
        (Decimal("1.10"), "1.10"),
        (Decimal("1E+5"), "1E+5"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Color.RED, "red"),
        (Color.MANY, ["red", 1]),
        (Level.HIGH, 3),
        (Plain.NAME, "name"),
        (b"\x00\xff", "AP8="),
        (bytearray(b"ab"), "YWI="),
        (Point(1, Point(2, b"")), {"x": 1, "y": {"x": 2, "y": ""}}),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (Pair(1, 2), [1, 2]),
        (OrderedDict(b=1, a=date(2026, 1, 1)), {"b": 1, "a": "2026-01-01"}),
        (UserDict({"a": UUID(int=1)}), {"a": str(UUID(int=1))}),
        ({Key.NAME: 1}, {"name": 1}),
        ({Plain.NAME: 1}, {"name": 1}),
    ],
)
def test_python_values_have_the_documented_form(value: Any, form: Any) -> None:
    """Each documented type is written in its form, at the top and inside of others."""
    assert repr(written(value)) == repr(form)
    assert written({"in": [value]}) == {"in": [form]}


def test_sets_that_can_not_be_sorted_are_written_all_the_same() -> None:
    """A set of what has no order is an array in any order."""
    assert sorted(written({"a", 1}), key=str) == [1, "a"]


def test_hosts_types_derived_from_jsons_own_are_written_as_these() -> None:
    """A subclass of str, int or float is written as its base."""

    class Name(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "wrong"

    class Metres(float):
        def __repr__(self) -> str:
            return "wrong"

    assert written([Name("a"), Metres(1.5), {Name("k"): 1}]) == ["a", 1.5, {"k": 1}]


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path", "part"),
    [
        ({"items": [1, 2, {"price": object()}]}, "payload.items[2].price", "object has no JSON form"),
        ({"a": float("nan")}, "payload.a", "nan is no JSON number"),
        ([1, float("-inf")], "payload[1]", "-inf is no JSON number"),
        ({"a": Decimal("NaN")}, "payload.a", "NaN is no JSON number"),
        ({"a": ["x", "a\0b"]}, "payload.a[1]", "NUL character (at 1)"),
        ({"a b": "\ud800"}, 'payload["a b"]', "\\ud800 at 0"),
        ({"a": {"\0": 1}}, 'payload.a["\\u0000"]', "the key holds a NUL character"),
        ({"\udc80": 1}, 'payload["\\udc80"]', "the key holds half a surrogate pair"),
        ({1: "a"}, "payload[1]", "the key is of type int, JSON keys are text"),
        ({"a": [{None: 1}]}, "payload.a[0][None]", "the key is of type NoneType"),
        ({"a": 10**5000}, "payload.a", "more than 4,300 digits"),
        ("a\0", "payload", "NUL character"),
        (object(), "payload", "object has no JSON form: convert it"),
        ({"a": (n for n in range(3))}, "payload.a", "generator has no JSON form"),
        ({"a": Point}, "payload.a", "type has no JSON form"),
        (Point(1, [object()]), "payload.y[0]", "object has no JSON form"),
    ],
)
def test_what_can_not_be_stored_is_refused_with_its_path(value: Any, path: str, part: str) -> None:
    """The error names the place of the fault as a person would write it, and what to do."""
    faults = faults_of(value)
    assert list(faults) == [path]
    assert part in faults[path]
    assert ": " in faults[path] or "pass" in faults[path]


def test_every_fault_is_named_at_once() -> None:
    """All faults of a payload are in one error, which can itself be stored."""
    faults = faults_of({"a": float("nan"), "b": [1, object()], "c": "x\0"})
    assert list(faults) == ["payload.a", "payload.b[1]", "payload.c"]


def test_of_very_many_faults_the_first_are_named() -> None:
    """A list of wrong values does not make an error as long as itself."""
    faults = faults_of([float("nan")] * 10_000)
    assert len(faults) == 21
    assert faults["payload…"] == "and more"


@pytest.mark.parametrize("model", [Order(id=1), Invoice(id=1)])
def test_a_mapped_instance_is_refused_with_a_remedy(model: Any) -> None:
    """Who passes a row of the database is told to pass its id."""
    name = type(model).__name__
    assert faults_of({"order": model}) == {
        "payload.order": f"an instance of the mapped class {name}: pass its id, and load it where it is needed"
    }


def test_what_contains_itself_is_refused() -> None:
    """Lists, mappings and dataclasses that contain themselves are named at the place where they do."""
    numbers: list[Any] = [1]
    numbers.append({"again": numbers})
    point = Point(1, None)
    point.y = [point]
    assert faults_of(numbers) == {"payload[1].again": "contains itself"}
    assert faults_of(point) == {"payload.y[0]": "contains itself"}


def test_what_stands_in_two_places_does_not_contain_itself() -> None:
    """The same object twice is written twice."""
    shared = {"a": date(2026, 1, 1)}
    assert written([shared, shared, {"b": shared}]) == [{"a": "2026-01-01"}, {"a": "2026-01-01"}, {"b": {"a": "2026-01-01"}}]


@pytest.mark.parametrize("deepest", [1, date(2026, 1, 1)], ids=["plain", "converted"])
def test_nesting_has_a_fixed_limit(deepest: Any) -> None:
    """A worker can read whatever was written, however deep the call stack was at either place."""

    def nested(levels: int) -> Any:
        value = deepest
        for _ in range(levels):
            value = [value]
        return value

    assert CODEC.dump(nested(MAX_DEPTH)) is not None
    assert CODEC.dump({"a": nested(MAX_DEPTH - 1)}) is not None
    for levels in (MAX_DEPTH + 1, 100_000):
        (fault,) = faults_of(nested(levels)).items()
        assert len(fault[0]) < 250
        assert f"deeper than {MAX_DEPTH} levels" in fault[1]


def test_size_is_counted_in_bytes_of_utf8() -> None:
    """The limit counts what is stored; the error tells size, limit and setting."""
    codec = plain_codec("t", 10)
    assert codec.dump("a" * 8) == '"aaaaaaaa"'
    assert codec.dump("日日a") == '"日日a"'
    with pytest.raises(PayloadError) as caught:
        codec.dump("日日日")
    assert caught.value.faults == {
        "payload": "11 bytes of JSON, the limit is 10: store it elsewhere and pass its key, or raise TASKENGINE_MAX_PAYLOAD"
    }
    assert codec.dump("日日日", 11) == '"日日日"'


def test_the_default_limit_is_one_mebibyte() -> None:
    """A payload of exactly 1 MiB is taken, one byte more is not."""
    assert CODEC.dump("x" * (DEFAULT_MAX_BYTES - 2)) is not None
    assert list(faults_of("x" * (DEFAULT_MAX_BYTES - 1))) == ["payload"]


@given(st.recursive(st.text(string.printable) | st.binary(max_size=3) | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_whatever_is_not_refused_can_be_stored(value: Any) -> None:
    """No text gets through that a database would refuse: neither NUL nor a lone surrogate nor a NaN."""
    try:
        text = CODEC.dump(value)
    except PayloadError as error:
        str(error).encode()
        assert "\0" not in str(error)  # noqa: PT017 - what is refused is refused with storable words.
        return
    assert text is not None
    text.encode()
    json.loads(text, parse_constant=pytest.fail)
    assert "\0" not in json.dumps(json.loads(text), ensure_ascii=False)


def test_a_lower_limit_of_digits_is_respected() -> None:
    """Where Python was told to write shorter numbers only, longer ones are refused."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert list(faults_of([10**700])) == ["payload"]
    finally:
        sys.set_int_max_str_digits(limit)


def test_the_hosts_own_errors_are_not_hidden() -> None:
    """An object that fails while it is read is the host's to repair."""

    class Failing(UserDict[str, Any]):
        def items(self) -> Any:
            raise ValueError("host")

    with pytest.raises(ValueError, match=r"^host$"):
        CODEC.dump(Failing())


# --- results --------------------------------------------------------------------------------------------------------------


def test_a_result_has_the_forms_of_a_payload() -> None:
    """What a handler returns is written like a payload; None is none."""
    assert dump_result(Point(1, Decimal(2))) == '{"x":1,"y":"2"}'
    assert dump_result(None) is None


def test_a_result_that_can_not_be_stored_names_its_path() -> None:
    """The paths of a result begin with `result`."""
    with pytest.raises(PayloadError) as caught:
        dump_result({"a": [object()]}, 100, task_type="report")
    assert list(caught.value.faults) == ["result.a[0]"]
    assert "'report'" in str(caught.value)
    with pytest.raises(PayloadError, match="102 bytes of JSON, the limit is 100"):
        dump_result("x" * 100, 100)

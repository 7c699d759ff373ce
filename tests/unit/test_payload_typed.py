"""Payloads whose type is known: dataclasses and other annotations, checked where they are written and where they are read."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import json
import typing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Annotated, Any, Literal, NewType, TypedDict
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from typing_extensions import TypeAliasType

from flask_taskengine.domain.errors import ConfigError, PayloadError
from flask_taskengine.engine.payload import PayloadCodec, codec_for


class Color(enum.Enum):
    """An enum of text."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """An enum of whole numbers."""

    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    """Flags."""

    READ = enum.auto()
    WRITE = enum.auto()


class Extra(TypedDict):
    """A mapping that only type checkers look into."""

    note: str


Sku = NewType("Sku", str)
Json: Any = TypeAliasType("Json", typing.Union[typing.Dict[str, "Json"], typing.List["Json"], str, int, None])  # type: ignore[misc] # noqa: UP006, UP007


@dataclasses.dataclass(frozen=True)
class Line:
    """A nested payload."""

    sku: Sku
    quantity: int


@dataclasses.dataclass
class Order:
    """A payload as hosts write them."""

    id: UUID
    lines: list[Line]
    placed_at: datetime
    total: Decimal
    color: Color
    note: str | None = None
    tags: frozenset[str] = frozenset()
    by_sku: dict[str, Line] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Everything:
    """One field of each documented type."""

    text: str
    whole: int
    number: float
    truth: bool
    moment: datetime
    day: date
    clock: time
    length: timedelta
    money: Decimal
    uuid: UUID
    color: Color
    level: Level
    rights: Rights
    raw: bytes
    names: list[str]
    pair: tuple[int, date]
    many: tuple[date, ...]
    some: set[int]
    fixed: frozenset[date]
    table: dict[str, Decimal]
    kind: Literal["a", 1]
    maybe: typing.Optional[date]  # noqa: UP045 - the older spelling is tested, too.
    either: int | str | list[date]
    number_either: int | float | None
    anything: Any
    extra: Extra
    sequence: collections.abc.Sequence[Line]
    annotated: Annotated[int, ["unhashable"]]
    alias: Json


@dataclasses.dataclass
class Tree:
    """A payload that contains itself."""

    name: str
    children: list[Tree] = dataclasses.field(default_factory=list)
    parent: Tree | None = None


ORDER = Order(
    id=UUID(int=7),
    lines=[Line(Sku("a"), 1), Line(Sku("b"), 2)],
    placed_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
    total=Decimal("19.90"),
    color=Color.RED,
    tags=frozenset({"new"}),
    by_sku={"a": Line(Sku("a"), 1)},
)
ORDER_FORM = {
    "id": "00000000-0000-0000-0000-000000000007",
    "lines": [{"sku": "a", "quantity": 1}, {"sku": "b", "quantity": 2}],
    "placed_at": "2026-03-01T12:00:00+00:00",
    "total": "19.90",
    "color": "red",
    "note": None,
    "tags": ["new"],
    "by_sku": {"a": {"sku": "a", "quantity": 1}},
}
CODEC = codec_for("order.place", Order)


def dumped(codec: PayloadCodec, value: Any) -> Any:
    """Return the parsed text of a payload."""
    text = codec.dump(value)
    assert text is not None
    return json.loads(text)


def dump_faults(codec: PayloadCodec, value: Any) -> dict[str, str]:
    """Return the faults for which a payload is refused where it is written."""
    with pytest.raises(PayloadError) as caught:
        codec.dump(value)
    return caught.value.faults


def load_faults(codec: PayloadCodec, value: Any) -> dict[str, str]:
    """Return the faults for which a payload is refused where it is read."""
    with pytest.raises(PayloadError) as caught:
        codec.load(value)
    return caught.value.faults


# --- round trips --------------------------------------------------------------------------------------------------------


def test_an_instance_is_written_in_the_documented_form_and_comes_back() -> None:
    """A dataclass is the object of its fields in the row, and the dataclass again for the handler."""
    assert dumped(CODEC, ORDER) == ORDER_FORM
    assert CODEC.load(ORDER_FORM) == ORDER


def test_a_mapping_is_checked_and_completed() -> None:
    """A mapping may hold JSON or Python's values; what is written has the defaults of the moment of enqueueing."""
    given_form = {key: ORDER_FORM[key] for key in ("id", "lines", "placed_at", "total", "color")}
    assert dumped(CODEC, given_form) == {**ORDER_FORM, "tags": [], "by_sku": {}}
    given_values = {**given_form, "id": ORDER.id, "lines": ORDER.lines, "placed_at": ORDER.placed_at, "total": ORDER.total, "tags": {"new"}}
    assert dumped(CODEC, given_values) == {**ORDER_FORM, "by_sku": {}}


letters = st.text("aä€😀")
finite = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
everything = st.builds(
    Everything,
    text=letters,
    number=finite,
    moment=st.datetimes(timezones=st.just(UTC)) | st.datetimes(),
    length=st.timedeltas(timedelta(days=-40_000), timedelta(days=40_000)),
    money=decimals,
    raw=st.binary(max_size=4),
    names=st.lists(letters),
    table=st.dictionaries(letters, decimals),
    either=st.integers() | letters | st.lists(st.dates()),
    number_either=st.none() | st.integers() | finite,
    anything=st.none() | letters,
    extra=st.just({"note": "x"}),
    sequence=st.lists(st.builds(Line, letters, st.integers())),
    annotated=st.integers(),
    alias=st.dictionaries(letters, st.lists(st.integers())),
)


@given(everything)
def test_every_documented_type_comes_back_equal(value: Everything) -> None:
    """What the handler gets equals what was enqueued, type by type."""
    codec = codec_for("t", Everything)
    read = codec.load(dumped(codec, value))
    assert read == value
    assert {name: type(item) for name, item in vars(read).items()} == {name: type(item) for name, item in vars(value).items()}


def test_dataclasses_may_contain_themselves() -> None:
    """A tree is written and read, and its faults have their path."""
    codec = codec_for("t", Tree)
    tree = Tree("a", [Tree("b", [Tree("c")]), Tree("d")], parent=Tree("p"))
    assert codec.load(dumped(codec, tree)) == tree
    assert load_faults(codec, {"name": "a", "children": [{"name": "b", "children": [{"name": 1}]}]}) == {
        "payload.children[0].children[0].name": "Not a valid string."
    }


def test_the_deepest_tree_that_can_be_written_can_be_read() -> None:
    """Python's recursion limit is not met within the limit of nesting."""
    codec = codec_for("t", Tree)
    tree = Tree("leaf")
    for _ in range(48):
        tree = Tree("a", [tree])
    assert codec.load(dumped(codec, tree)) == tree


@pytest.mark.parametrize(
    ("annotation", "value", "form"),
    [
        (datetime, datetime(2026, 3, 1, tzinfo=UTC), "2026-03-01T00:00:00+00:00"),
        (UUID, UUID(int=1), str(UUID(int=1))),
        (list[Line], [Line(Sku("a"), 1)], [{"sku": "a", "quantity": 1}]),
        (dict[str, Color], {"a": Color.BLUE}, {"a": "blue"}),
        (tuple[int, int], (1, 2), [1, 2]),
        (tuple, (1, 2), [1, 2]),
        (set, {1}, [1]),
        (Literal["a", "b"], "a", "a"),
        (Literal[Color.RED, b"x"], Color.RED, "red"),
        (Literal[Color.RED, b"x"], b"x", "eA=="),
        (Line | None, Line(Sku("a"), 1), {"sku": "a", "quantity": 1}),
        (Line | date, date(2026, 1, 1), "2026-01-01"),
    ],
)
def test_a_payload_need_not_be_a_dataclass(annotation: Any, value: Any, form: Any) -> None:
    """Any annotation with a documented form makes a typed payload."""
    codec = codec_for("t", annotation)
    assert dumped(codec, value) == form
    assert codec.load(form) == value


@pytest.mark.parametrize(
    "annotation", [str, int, dict, list, Any, object, dict[str, Any], list[int | None], str | None, Extra, type(None), Json]
)
def test_an_annotation_that_json_itself_expresses_checks_nothing(annotation: Any) -> None:
    """`payload: dict` is documentation: plain JSON is plain JSON."""
    codec = codec_for("t", annotation)
    for value in ("text", 5, {"a": [1]}, None):
        text = codec.dump(value)
        assert codec.load(None if text is None else json.loads(text)) == value


# --- faults -------------------------------------------------------------------------------------------------------------


def test_all_faults_are_named_with_their_paths() -> None:
    """The writer of a wrong payload is told every field and what is wrong there, as is the reader of one."""
    wrong = {
        "id": "7",
        "lines": [{"sku": 1, "quantity": "5"}, {"sku": "a", "colour": 1}, 3],
        "placed_at": "2026-03-01",
        "total": 19.9,
        "color": "green",
        "tags": "new",
        "by_sku": {"a b": {}},
        "priority": 1,
    }
    expected = {
        "payload.id": "Not a valid UUID.",
        "payload.lines[0].sku": "Not a valid string.",
        "payload.lines[0].quantity": "Not a valid integer.",
        "payload.lines[1].quantity": "Missing data for required field.",
        "payload.lines[1].colour": "Unknown field.",
        "payload.lines[2]": "Not a valid mapping with the fields of Line.",
        "payload.placed_at": 'Not a valid datetime: give ISO 8601 such as "2026-03-01T12:00:00+01:00".',
        "payload.total": 'Not a valid decimal: give text such as "19.90".',
        "payload.color": "Must be one of: 'red', 'blue'.",
        "payload.tags": "Not a valid list.",
        'payload.by_sku["a b"].sku': "Missing data for required field.",
        'payload.by_sku["a b"].quantity': "Missing data for required field.",
        "payload.priority": "Unknown field.",
    }
    assert dump_faults(CODEC, wrong) == expected
    assert load_faults(CODEC, wrong) == expected


@pytest.mark.parametrize(
    ("annotation", "wrong"),
    [
        (str, [5, None, True, []]),
        (int, ["5", 5.0, True, None]),
        (float, ["5", True, None, 10**400]),
        (bool, ["true", 1, 0, None]),
        (datetime, ["2026-03-01", "20260301", "", 5, "x"]),
        (date, ["2026-03-01T12:00:00", "", 5]),
        (time, ["12", 12, "2026-03-01"][1:]),
        (timedelta, ["5", True, 1e300, None]),
        (Decimal, [1.5, "x", "NaN", "Infinity", True, ""]),
        (UUID, ["x", 5, None]),
        (bytes, ["a", "ä", 5, "AP8"]),
        (Color, ["RED", 1, None, []]),
        (Level, ["1", True, 1.0, 3]),
        (Rights, [True, "1", 64]),
        (Literal["a", 1], ["b", True, 1.0, None, {}]),
        (list[int], ["ab", {"a": 1}, 5]),
        (tuple[int, str], [[1], [1, "a", 2], ["a", 1], "ab"]),
        (dict[str, int], [[], {"a": "1"}]),
        (int | None, ["", "5", True, 5.5]),
        (int | float, [True, "5", None]),
        (date | int, ["x", 5.5, None]),
    ],
)
def test_types_are_strict(annotation: Any, wrong: list[Any]) -> None:
    """Nothing is converted that was not written so: text is no number, a boolean is no integer."""
    holder = dataclasses.make_dataclass("Holder", [("field", annotation)])
    codec = codec_for("t", holder)
    for value in wrong:
        for faults in (load_faults(codec, {"field": value}), dump_faults(codec, {"field": value}), dump_faults(codec, holder(value))):
            assert all(path.startswith("payload.field") for path in faults), value


def test_an_instance_with_a_wrong_field_is_refused_where_it_is_written() -> None:
    """A dataclass checks nothing by itself; the codec does."""
    assert dump_faults(
        CODEC,
        dataclasses.replace(
            ORDER,
            total="many",  # type: ignore[arg-type] # that is what is tested.
            lines=[Line(Sku("a"), True)],
        ),
    ) == {
        "payload.lines[0].quantity": "Not a valid integer.",
        "payload.total": 'Not a valid decimal: give text such as "19.90".',
    }


def test_what_json_can_not_hold_is_refused_with_the_same_paths() -> None:
    """NUL characters and sizes are checked for typed payloads, too."""
    assert list(dump_faults(CODEC, dataclasses.replace(ORDER, note="a\0"))) == ["payload.note"]
    with pytest.raises(PayloadError, match="the limit is 10"):
        CODEC.dump(ORDER, 10)


def test_an_instance_of_another_dataclass_is_refused() -> None:
    """Fields that happen to fit do not make one payload another."""
    other = dataclasses.make_dataclass("Other", [("sku", str), ("quantity", int)])
    assert dump_faults(codec_for("t", Line), other("a", 1)) == {"payload": "Other given: pass Line, or a mapping of its fields"}
    assert dump_faults(codec_for("t", Line | None), other("a", 1)) == {"payload": "Other given: pass Line, or a mapping of its fields"}


def test_a_derived_instance_with_more_fields_is_refused() -> None:
    """What the handler's dataclass does not know would be lost."""
    wider = dataclasses.make_dataclass("Wider", [("colour", str)], bases=(Line,), frozen=True)
    assert dump_faults(codec_for("t", Line), wider("a", 1, "red")) == {"payload.colour": "Unknown field."}


def test_none_is_a_payload_only_where_the_annotation_allows_it() -> None:
    """A task without a payload for a handler that needs one is refused where it is written, and where it is read."""
    for faults in (dump_faults(CODEC, None), load_faults(CODEC, None)):
        assert faults == {"payload": "None given, this task type needs a payload"}
    codec = codec_for("t", Order | None)
    assert codec.dump(None) is None
    assert codec.load(None) is None


@pytest.mark.parametrize("error", [ValueError("must be ordered"), TypeError("must be ordered"), AssertionError("must be ordered")])
def test_a_dataclass_may_check_itself(error: Exception) -> None:
    """What `__post_init__` refuses is a fault at the place of the dataclass."""
    raising = [error]

    @dataclasses.dataclass
    class Span:
        start: int
        end: int

        def __post_init__(self) -> None:
            if self.start > self.end:
                raise raising[0]

    codec = codec_for("t", list[Span])
    assert dump_faults(codec, [{"start": 1, "end": 2}, {"start": 2, "end": 1}]) == {"payload[1]": "must be ordered"}
    span = Span(1, 2)
    span.end = 0
    with pytest.raises(PayloadError) as caught:
        codec.dump([span])
    assert caught.value.faults == {"payload[0]": "must be ordered"}


def test_other_errors_of_a_dataclass_are_its_own() -> None:
    """A fault in the host's code is not dressed up as a fault of the payload."""

    @dataclasses.dataclass
    class Broken:
        a: int

        def __post_init__(self) -> None:
            raise KeyError(self.a)

    with pytest.raises(KeyError):
        codec_for("t", Broken).load({"a": 1})


def test_derived_fields_are_written_and_made_anew() -> None:
    """A field that the constructor does not take is in the row for people, and not read from it."""

    @dataclasses.dataclass
    class Area:
        width: int
        height: int
        size: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            self.size = self.width * self.height

    codec = codec_for("t", Area)
    assert dumped(codec, Area(2, 3)) == {"width": 2, "height": 3, "size": 6}
    assert dumped(codec, {"width": 2, "height": 3}) == {"width": 2, "height": 3, "size": 6}
    assert codec.load({"width": 2, "height": 3, "size": 7}) == Area(2, 3)


def test_long_choices_are_not_listed_in_full() -> None:
    """The fault of an enum with hundreds of members stays readable."""
    many = enum.Enum("Many", {f"M{number}": number for number in range(300)})  # type: ignore[misc] # not a literal.
    fault = load_faults(codec_for("t", dataclasses.make_dataclass("Holder", [("field", many)])), {"field": -1})["payload.field"]
    assert fault.endswith("19, …")


# --- annotations that can not be ------------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    """The host's models."""


class Model(Base):
    """A mapped class."""

    __tablename__ = "model"
    id: Mapped[int] = mapped_column(sa.Integer, primary_key=True)


class Odd(enum.Enum):
    """An enum whose value has no JSON form."""

    A = object()


class Lists(enum.Enum):
    """An enum whose value is no single one."""

    A = (1, 2)


def test_every_field_without_a_json_form_is_named_with_a_remedy() -> None:
    """The error at registration names each field and what to use instead."""
    wrong = dataclasses.make_dataclass(
        "Wrong",
        [
            ("file", BytesIO),
            ("model", Model),
            ("both", str | date),
            ("numbers", dict[int, str]),
            ("nested", list[BytesIO | None]),
            ("odd", Odd),
            ("lists", Lists),
            ("fine", int),
            ("once", dataclasses.InitVar[int]),
        ],
    )
    with pytest.raises(ConfigError) as caught:
        codec_for("t", wrong)
    another = "use a dataclass or a type with a documented JSON form, or give schema= a marshmallow Schema"
    assert sorted(caught.value.faults) == sorted(
        [
            f"Wrong.file: BytesIO has no JSON form: {another}",
            "Wrong.model: Model is a mapped class: pass its id, and load it in the handler",
            "Wrong.both: JSON can not tell the members of str | date apart: use one type, or give schema= a marshmallow Schema",
            "Wrong.numbers: the keys are of type int, JSON keys are text: use dict[str, ...]",
            f"Wrong.nested: BytesIO has no JSON form: {another}",
            "Wrong.odd: the value of Odd.A has no JSON form: use text or numbers as its values",
            "Wrong.lists: the value of Lists.A is no single value: use text or numbers as its values",
            "Wrong.once: an InitVar is not kept, so it can not be written: make it a field",
        ]
    )


@pytest.mark.parametrize("annotation", [BytesIO, Model, typing.Generic, {}, "text", 5, Line | Order, collections.abc.Callable])
def test_a_payload_without_a_json_form_is_refused_at_registration(annotation: Any) -> None:
    """What can not be a payload is named with the task type."""
    with pytest.raises(ConfigError, match=r"payload of task type 'email\.send': "):
        codec_for("email.send", annotation)


def test_a_field_annotated_with_an_unknown_name_is_named() -> None:
    """A dataclass whose annotations are for type checkers only can not be read; the remedy is in the error."""

    @dataclasses.dataclass
    class Half:
        a: Missing  # type: ignore[name-defined] # noqa: F821 - that is what is tested.

    with pytest.raises(
        ConfigError, match=r"Half is annotated with a name that is not known here \(name 'Missing' is not defined\): define"
    ):
        codec_for("t", Half)
    codec = codec_for("t", Half, localns={"Missing": date})
    assert codec.load({"a": "2026-01-01"}) == Half(date(2026, 1, 1))

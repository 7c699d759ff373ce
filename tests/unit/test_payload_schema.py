"""Payloads that a marshmallow Schema describes."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from typing import Any

import marshmallow
import pytest
from marshmallow import EXCLUDE, Schema, fields, post_load, validate, validates_schema

from flask_taskengine.domain.errors import ConfigError, PayloadError
from flask_taskengine.engine.payload import PayloadCodec, codec_for


@dataclasses.dataclass
class Mail:
    """What a Schema loads into."""

    to: str
    day: date
    id: int = 0


class PartSchema(Schema):
    """A nested Schema."""

    name = fields.String(required=True)


class MailSchema(Schema):
    """A Schema that loads a dict."""

    id = fields.Integer(dump_only=True)
    to = fields.Email(required=True)
    day = fields.Date(required=True)
    secret = fields.String(load_only=True)
    parts = fields.List(fields.Nested(PartSchema))
    sizes = fields.Dict(keys=fields.String(), values=fields.Integer())
    subject = fields.String(data_key="Subject", validate=validate.Length(max=5))

    @validates_schema
    def not_both(self, data: dict[str, Any], **_: Any) -> None:
        if data.get("secret") == data["to"]:
            raise marshmallow.ValidationError("the secret is the address")


class ObjectSchema(MailSchema):
    """A Schema that loads an object."""

    @post_load
    def made(self, data: dict[str, Any], **_: Any) -> Mail:
        if data["to"].startswith("nobody"):
            raise ValueError("nobody reads that")
        return Mail(**data)


FORM = {"to": "a@example.org", "day": "2026-03-01"}
CODEC = codec_for("mail", MailSchema)


def faults_of(codec: PayloadCodec, value: Any, verb: str = "dump") -> dict[str, str]:
    """Return the faults for which a payload is refused."""
    with pytest.raises(PayloadError) as caught:
        getattr(codec, verb)(value)
    return caught.value.faults


def dumped(codec: PayloadCodec, value: Any) -> Any:
    """Return the parsed text of a payload."""
    text = codec.dump(value)
    assert text is not None
    return json.loads(text)


@pytest.mark.parametrize("schema", [MailSchema, MailSchema()], ids=["class", "instance"])
def test_a_mapping_is_stored_as_it_is_and_loaded_for_the_handler(schema: Any) -> None:
    """The row holds what was given, load-only fields and data keys included; the handler gets what the Schema loads."""
    codec = codec_for("mail", schema)
    form = FORM | {"secret": "x", "Subject": "hello"}
    assert dumped(codec, form) == form
    assert codec.load(form) == {"to": "a@example.org", "day": date(2026, 3, 1), "secret": "x", "subject": "hello"}


def test_a_mapping_may_hold_pythons_values() -> None:
    """A date in a mapping has its documented form, which the Schema then loads."""
    assert dumped(CODEC, FORM | {"day": date(2026, 3, 1)}) == FORM


def test_an_object_goes_through_the_schemas_dump() -> None:
    """What the Schema loads into can be enqueued; fields that are only dumped are left out, since loading refuses them."""
    codec = codec_for("mail", ObjectSchema)
    mail = Mail("a@example.org", date(2026, 3, 1), id=7)
    assert dumped(codec, mail) == FORM
    assert codec.load(FORM) == dataclasses.replace(mail, id=0)


def test_many_payloads_in_one() -> None:
    """A Schema for many takes lists of mappings and lists of objects."""
    codec = codec_for("mail", ObjectSchema(many=True))
    assert dumped(codec, [FORM, FORM]) == [FORM, FORM]
    assert dumped(codec, [Mail("a@example.org", date(2026, 3, 1))]) == [FORM]
    assert codec.load([FORM]) == [Mail("a@example.org", date(2026, 3, 1))]
    assert faults_of(codec, [FORM, {"to": "x", "day": "2026-03-01"}]) == {"payload[1].to": "Not a valid email address."}


@pytest.mark.parametrize("verb", ["dump", "load"])
def test_faults_have_their_paths_on_both_sides(verb: str) -> None:
    """The Schema's nested messages become one line per place, at enqueue and in the worker."""
    wrong = {"to": "x", "day": "yesterday", "parts": [{"name": "a"}, {"name": 1, "size": 2}], "sizes": {"a": "b"}, "Subject": "too long"}
    assert faults_of(CODEC, wrong, verb) == {
        "payload.to": "Not a valid email address.",
        "payload.day": "Not a valid date.",
        "payload.parts[1].name": "Not a valid string.",
        "payload.parts[1].size": "Unknown field.",
        "payload.sizes.a.value": "Not a valid integer.",
        "payload.Subject": "Longer than maximum length 5.",
    }


@pytest.mark.parametrize("value", [None, "text", 5, [], b"x"])
def test_what_is_no_mapping_is_refused(value: Any) -> None:
    """A scalar is not silently an object without fields."""
    assert faults_of(codec_for("mail", Schema.from_dict({"a": fields.Integer()})), value) == {"payload": "Invalid input type."}


def test_faults_of_the_whole_are_at_the_payload() -> None:
    """A Schema's own check has no field, and so the payload's path."""
    assert faults_of(CODEC, FORM | {"secret": FORM["to"]}) == {"payload": "the secret is the address"}


def test_messages_of_hosts_may_be_nested_in_any_way() -> None:
    """A check may raise text, lists and mappings."""

    class Raising(Schema):
        a = fields.Raw()

        @validates_schema
        def check(self, data: dict[str, Any], **_: Any) -> None:
            raise marshmallow.ValidationError(data["a"])

    codec = codec_for("t", Raising)
    assert faults_of(codec, {"a": "x"}) == {"payload": "x"}
    assert faults_of(codec, {"a": {"b": "x", "c": [["y"], "z"], "d": {"_schema": ["u", "v"]}}}) == {
        "payload.b": "x",
        "payload.c": "['y'] z",
        "payload.d": "u v",
    }


def test_an_object_that_can_not_be_made_is_a_fault() -> None:
    """A ValueError from `post_load` is a fault of the payload, as it is from a dataclass."""
    codec = codec_for("mail", ObjectSchema)
    assert faults_of(codec, FORM | {"to": "nobody@example.org"}, "load") == {"payload": "nobody reads that"}


def test_an_object_that_can_not_be_dumped_is_a_fault() -> None:
    """An object of another kind is refused."""
    (fault,) = faults_of(CODEC, Mail("a@example.org", "today")).items()  # type: ignore[arg-type] # that is what is tested.
    assert fault[0] == "payload"
    assert fault[1].startswith("MailSchema can not dump it: ")
    assert "payload.to" in faults_of(CODEC, object())


def test_hooks_that_change_their_input_do_not_change_what_is_stored() -> None:
    """The check at enqueue works on a copy."""

    class Popping(Schema):
        a = fields.Integer()

        @marshmallow.pre_load
        def pop(self, data: dict[str, Any], **_: Any) -> dict[str, Any]:
            data.pop("b")
            return data

    codec = codec_for("t", Popping)
    value = {"a": 1, "b": 2}
    assert dumped(codec, value) == {"a": 1, "b": 2} == value


def test_the_schema_decides_about_unknown_fields() -> None:
    """`Meta.unknown` is the way to let newer writers add fields before the workers know them."""

    class Lenient(Schema):
        class Meta:
            unknown = EXCLUDE

        a = fields.Integer()

    codec = codec_for("t", Lenient)
    assert codec.load({"a": 1, "b": 2}) == {"a": 1}


def test_a_payload_of_a_schema_is_checked_like_any_other() -> None:
    """NUL characters and sizes are refused with their path."""
    assert list(faults_of(CODEC, FORM | {"secret": "\0"})) == ["payload.secret"]
    with pytest.raises(PayloadError, match="the limit is 10"):
        CODEC.dump(FORM, 10)


def test_a_schema_that_can_not_be_made_is_a_clear_error() -> None:
    """A class whose constructor needs arguments must be given as an instance."""

    class Demanding(Schema):
        def __init__(self, needed: str) -> None:
            super().__init__()

    with pytest.raises(ConfigError, match=r"task type 'mail': Demanding\(\) raised TypeError.*give schema= an instance"):
        codec_for("mail", Demanding)

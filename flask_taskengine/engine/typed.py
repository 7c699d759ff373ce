"""From a handler's annotation to the reader of its payload.

The types are those of ``jsonform`` plus ``Literal``, ``Any``, unions whose members JSON can tell apart, and nested and
recursive dataclasses. A field that the dataclass does not know is a fault: add a field in the workers first, then where
tasks are enqueued; or give ``schema=`` a marshmallow Schema whose ``Meta.unknown`` says otherwise.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

from ..domain.errors import ConfigError
from .faults import Faults
from .jsonform import json_form
from .readers import ANY, LEAVES, STRICT_FLOAT, Form, Reader, array, choice, fixed_array, flag, instance, mapping, union

_LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection, collections.abc.Iterable)
_OBJECTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_SETS = (set, collections.abc.Set, collections.abc.MutableSet)

_ANOTHER = "use a dataclass or a type with a documented JSON form, or give schema= a marshmallow Schema"
_ONE_TYPE = "use one type, or give schema= a marshmallow Schema"
_SINGLE = "use text or numbers as its values"
_IMPORT = "define or import it at module level, and not for type checkers only"


def form_of(annotation: Any, place: str, localns: Mapping[str, Any] | None = None) -> Form:
    """Make the reader of an annotation.

    Args:
        place: names the annotation in errors.
        localns: names that annotations in text may use beside their module's.

    Raises:
        ConfigError: a part of the annotation has no JSON form; lists every such field.
    """
    builder = _Builder(localns)
    form = builder.form(annotation, place)
    if builder.faults:
        raise ConfigError(builder.faults)
    return form


class _Builder:
    """Makes the forms of one annotation, and collects what has none."""

    def __init__(self, localns: Mapping[str, Any] | None) -> None:
        self.faults: list[str] = []
        self._localns = dict(localns or {})
        self._readers: dict[type, Reader | None] = {}
        self._aliases: set[int] = set()

    def form(self, annotation: Any, place: str) -> Form:
        try:
            leaf = LEAVES.get(annotation)
        except TypeError:
            leaf = None
        if leaf is not None:
            return leaf
        if isinstance(annotation, typing.ForwardRef):
            # What is left once all names are known: an alias, such as one for any JSON, that contains itself.
            return ANY
        if isinstance(annotation, typing.NewType):
            return self.form(annotation.__supertype__, place)
        if hasattr(annotation, "__value__"):
            return self._alias(annotation, place)
        if isinstance(annotation, type) and typing.get_origin(annotation) is None:
            return self._class(annotation, place)
        return self._generic(annotation, place)

    def _alias(self, alias: Any, place: str) -> Form:
        """Read a ``type`` statement's alias; inside of itself, as JSON's own alias is, it may be anything."""
        if id(alias) in self._aliases:
            return ANY
        self._aliases.add(id(alias))
        form = self.form(alias.__value__, place)
        self._aliases.discard(id(alias))
        return form

    def _class(self, cls: type, place: str) -> Form:
        if hasattr(cls, "__mapper__"):
            return self._refuse(place, f"{cls.__name__} is a mapped class", "pass its id, and load it in the handler")
        if dataclasses.is_dataclass(cls):
            return self._dataclass(cls, place)
        if issubclass(cls, enum.Flag):
            return flag(cls)
        if issubclass(cls, enum.Enum):
            return self._enum(cls, place)
        if typing.is_typeddict(cls):
            return mapping(ANY)
        return self._container(cls, (), place)

    def _generic(self, annotation: Any, place: str) -> Form:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, place)
        if origin is typing.Literal:
            written = [json_form(value) for value in arguments]
            return choice({(type(form), form): value for form, value in zip(written, arguments, strict=True)})
        if origin in (typing.Annotated, typing.Final):
            return self.form(arguments[0], place)
        return self._container(origin or annotation, arguments, place)

    def _container(self, origin: Any, arguments: tuple[Any, ...], place: str) -> Form:
        if origin in _OBJECTS:
            if arguments and arguments[0] is not str:
                return self._refuse(place, f"the keys are of type {_name(arguments[0])}, JSON keys are text", "use dict[str, ...]")
            return mapping(self.form(arguments[1], place) if arguments else ANY)
        if origin is tuple and arguments and arguments[-1] is not ...:
            return fixed_array([self.form(argument, place) for argument in arguments])
        for kinds, make in ((_LISTS, list), (_SETS, set), ((frozenset,), frozenset), ((tuple,), tuple)):
            if origin in kinds:
                return array(self.form(arguments[0], place) if arguments else ANY, make)
        return self._refuse(place, f"{_name(origin)} has no JSON form", _ANOTHER)

    def _union(self, members: tuple[Any, ...], place: str) -> Form:
        forms = [self.form(member, place) for member in members]
        if int in members and float in members:
            forms[members.index(float)] = STRICT_FLOAT
        kinds = [kind for form in forms for kind in form.kinds]
        if len(kinds) > len(set(kinds)):
            names = " | ".join(_name(member) for member in members)
            return self._refuse(place, f"JSON can not tell the members of {names} apart", _ONE_TYPE)
        return union(forms)

    def _enum(self, cls: type[enum.Enum], place: str) -> Form:
        members: dict[tuple[type, Any], Any] = {}
        for member in cls:
            try:
                value = json_form(member)
            except Faults:
                return self._refuse(place, f"the value of {member} has no JSON form", _SINGLE)
            if isinstance(value, (dict, list)):
                return self._refuse(place, f"the value of {member} is no single value", _SINGLE)
            members[type(value), value] = member
        return choice(members)

    def _dataclass(self, cls: type, place: str) -> Form:
        if cls not in self._readers:
            # Known before its fields are, so that a dataclass may contain itself.
            self._readers[cls] = None
            hints = self._hints(cls, place)
            fields = dataclasses.fields(cls)
            forms = {field.name: (field, self.form(hints.get(field.name, Any), f"{cls.__qualname__}.{field.name}")) for field in fields}
            self._readers[cls] = instance(cls, forms)
        reader = self._readers[cls] or self._later(cls)
        return Form(reader, frozenset({"object"}), classes=(cls,))

    def _later(self, cls: type) -> Reader:
        def read(value: Any) -> Any:
            reader = self._readers[cls]
            assert reader is not None
            return reader(value)

        return read

    def _hints(self, cls: type, place: str) -> dict[str, Any]:
        hints: dict[str, Any] = {}
        try:
            try:
                hints = typing.get_type_hints(cls)
            except NameError:
                hints = typing.get_type_hints(cls, localns=self._localns)
        except NameError as error:
            self._refuse(place, f"{cls.__qualname__} is annotated with a name that is not known here ({error})", _IMPORT)
        for name, hint in hints.items():
            if isinstance(hint, dataclasses.InitVar):
                self._refuse(f"{cls.__qualname__}.{name}", "an InitVar is not kept, so it can not be written", "make it a field")
        return hints

    def _refuse(self, place: str, what: str, remedy: str) -> Form:
        self.faults.append(f"{place}: {what}: {remedy}")
        return Form(ANY.read, frozenset())


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)

"""What can be learned of a handler before it runs: its parameters, its payload's annotation, where it is written."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

from ..domain.errors import ConfigError
from .context import TaskContext

_FORMS = "a handler takes (payload) or (payload, context)"
_SYNC = "make it one with asgiref.sync.async_to_sync, or with app.ensure_sync"
_CONTEXT = re.compile(rf"\b{TaskContext.__name__}\b")
_signature: Callable[[Any], inspect.Signature] = functools.partial(inspect.signature, follow_wrapped=False)
if sys.version_info >= (3, 14):
    import annotationlib

    # Annotations that only type checkers can resolve are no reason to refuse a handler.
    _signature = functools.partial(_signature, annotation_format=annotationlib.Format.FORWARDREF)


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler made uniform."""

    call: Callable[[Any, TaskContext], Any]
    annotation: Any
    """Of the payload; ``None`` without one."""
    place: str
    localns: Mapping[str, Any]
    """Names of the function inside which the handler is defined, while that function still runs."""


def inspect_handler(function: Callable[..., Any]) -> Handler:
    """Find out how to call a function with a payload and a context, through decorators, partials and methods.

    Raises:
        ConfigError: it can not be a handler.
    """
    place = place_of(function)
    _refuse_what_never_runs(function, place)
    shape = _shape(_parameters(function), place)
    localns = enclosing_names(function)
    annotation = None if shape.payload is None else _annotation(function, shape.payload, place, localns)
    call = _caller(function, shape)
    if any(inspect.iscoroutinefunction(layer) for layer in _layers(function)):
        call = _awaited_nowhere(call, place)
    return Handler(call, annotation, place, localns)


def place_of(function: Any) -> str:
    """Return ``module.qualname (file:line)`` of the innermost function."""
    *_, inner = _layers(function)
    target = inner if hasattr(inner, "__qualname__") else type(inner)
    name = f"{target.__module__}.{target.__qualname__}"
    code = getattr(_called(inner), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _layers(function: Any) -> Iterator[Any]:
    """Yield the function and what it wraps, down to the innermost."""
    seen: set[int] = set()
    while id(function) not in seen:
        seen.add(id(function))
        yield function
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType) and hasattr(function, "__wrapped__"):
            function = MethodType(function.__wrapped__, function.__self__)
        else:
            function = getattr(function, "__wrapped__", function)


def _called(function: Any) -> Any:
    return function if inspect.isroutine(function) else getattr(type(function), "__call__", function)  # noqa: B004 - asks for its code, not whether it is there.


def _refuse_what_never_runs(function: Any, place: str) -> None:
    if isinstance(function, type):
        raise ConfigError(f"{place} is a class: register an instance of it with engine.register({function.__name__}())")
    if not callable(function):
        raise ConfigError(f"{place}: {type(function).__name__} can not be called: {_FORMS}")
    called = function if isinstance(function, functools.partial) else _called(function)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigError(f"{place} is async, handlers are plain functions: {_SYNC}")
    if inspect.isgeneratorfunction(called):
        raise ConfigError(f"{place} is a generator, whose body would never run: loop in it and return instead of yield")


# --- parameters -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    payload: str | None
    """The parameter's name, where it has one."""
    takes_payload: bool
    takes_context: bool = False
    context_keyword: str | None = None
    """The parameter's name, where the context can not be passed by position."""


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of the outermost layer that says what it takes."""
    parameters: list[inspect.Parameter] = []
    for layer in _layers(function):
        try:
            parameters = list(_signature(layer).parameters.values())
        except (ValueError, TypeError):
            continue
        if not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters) or _positional(parameters):
            return parameters
    return parameters or [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]


def _positional(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _shape(parameters: list[inspect.Parameter], place: str) -> _Shape:
    positional = _positional(parameters)
    keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    keyword = next((p.name for p in keyword_only if p.name == "context" or _is_context(p)), None)
    strangers = [p.name for p in positional[2:] + keyword_only if p.default is p.empty and p.name != keyword]
    if strangers:
        raise ConfigError(f"{place} also asks for {', '.join(strangers)}: {_FORMS}; give others a default")
    if len(positional) > 1 and _is_context(positional[0]):
        raise ConfigError(f"{place} takes the context first: {_FORMS}, in this order")
    if positional and _is_context(positional[0]):
        return _Shape(None, takes_payload=False, takes_context=True)
    takes_payload = bool(positional) or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    by_position = any(p.default is p.empty or p.name == "context" or _is_context(p) for p in positional[1:2])
    name = positional[0].name if positional else None
    return _Shape(name, takes_payload, by_position or keyword is not None, None if by_position else keyword)


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return parameter.name == "context"
    # Often text, and then of a name that only type checkers import.
    return _CONTEXT.search(annotation if isinstance(annotation, str) else repr(annotation)) is not None


def _caller(function: Callable[..., Any], shape: _Shape) -> Callable[[Any, TaskContext], Any]:
    keyword = shape.context_keyword
    match shape.takes_payload, shape.takes_context:
        case True, True if keyword:
            return lambda payload, context: function(payload, **{keyword: context})
        case True, True:
            return function
        case True, False:
            return lambda payload, _: function(payload)
        case False, True if keyword:
            return lambda _, context: function(**{keyword: context})
        case False, True:
            return lambda _, context: function(context)
        case _:
            return lambda _payload, _context: function()


def _awaited_nowhere(call: Callable[[Any, TaskContext], Any], place: str) -> Callable[[Any, TaskContext], Any]:
    """Guard a decorated async function: whether its decorator runs it or only makes a coroutine shows when it is called."""

    def checked(payload: Any, context: TaskContext) -> Any:
        result = call(payload, context)
        if inspect.iscoroutine(result):
            result.close()
            raise ConfigError(f"{place} is async and its decorator does not run it: {_SYNC}")
        return result

    return checked


# --- annotations ----------------------------------------------------------------------------------------------------------


def evaluated(annotation: Any, globalns: Mapping[str, Any], place: str, localns: Mapping[str, Any]) -> Any:
    """Return what an annotation means, which may be text.

    Raises:
        ConfigError: it uses a name that is not known there.
    """

    def holder() -> None: ...

    # Of the payload alone: the others may well be known to type checkers only.
    holder.__annotations__ = {"payload": annotation}
    try:
        return typing.get_type_hints(holder, dict(globalns), dict(localns))["payload"]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        told = f"{place}: the payload's annotation {annotation!r} can not be resolved ({error})"
        raise ConfigError(f"{told}: define or import it at module level, and not for type checkers only") from error


def _annotation(function: Any, name: str, place: str, localns: Mapping[str, Any]) -> Any:
    """Return the payload's annotation, of the innermost layer that has one: the others have copies at best."""
    for layer in reversed(list(_layers(function))):
        target = _called(layer)
        written = _written_annotations(target)
        if name in written:
            return evaluated(written[name], getattr(inspect.unwrap(target), "__globals__", {}), place, localns)
    return None


def _written_annotations(target: Any) -> Mapping[str, Any]:
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(target, format=annotationlib.Format.FORWARDREF)
    written: Mapping[str, Any] = getattr(target, "__annotations__", None) or {}
    return written


def enclosing_names(function: Any) -> dict[str, Any]:
    """Return the local names of the functions inside which this one is defined, as far as they still run."""
    *_, inner = _layers(function)
    outer = getattr(inner, "__qualname__", "").split(".<locals>.")[:-1]
    wanted = {".<locals>.".join(outer[: depth + 1]) for depth in range(len(outer))}
    names: dict[str, Any] = {}
    frame = sys._getframe()  # noqa: SLF001 - the only way to the names of an app factory that defines its handlers.
    while wanted and frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_qualname in wanted and frame.f_code.co_filename == getattr(inner, "__code__", frame.f_code).co_filename:
            wanted.discard(frame.f_code.co_qualname)
            names = dict(frame.f_locals) | names
    return names

"""From a handler, a function or an object, to its processor."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import EllipsisType
from typing import Any, Generic, TypedDict, TypeVar, Unpack, get_args, get_origin

from ..domain.durations import seconds
from ..domain.errors import ConfigError
from ..domain.limits import Limits
from ..domain.retry import RetryPolicy
from .context import TaskContext
from .handlers import Handler, enclosing_names, evaluated, inspect_handler
from .payload import DEFAULT_MAX_BYTES, PayloadCodec, codec_for
from .registry import Processor, type_fault

T = TypeVar("T")
_R = TypeVar("_R")

ISOLATIONS = ("thread", "process")


class ProcessorOptions(TypedDict, total=False):
    """What may be said of a processor beside its task type; whatever is left out is left to the settings."""

    schema: Any
    """A marshmallow Schema (class or instance) or a dataclass; wins over the handler's annotation."""
    retry: RetryPolicy | None
    timeout: timedelta | float | str | EllipsisType | None
    """Of one attempt; ``None`` for none at all."""
    limits: Limits | None
    isolation: str
    """``"thread"``, or ``"process"`` for code that can not be interrupted: a process of its own per attempt."""
    store_result: bool
    """Keep what the handler returns as the task's ``result``."""


class TaskProcessor(ABC, Generic[T]):
    """The class form of a handler: set ``type``, override ``process``, and register an instance.

    ``T`` is the payload: a dataclass, or any type with a documented JSON form.

    Example:
        >>> class Greeter(TaskProcessor[str]):
        ...     type = "greet"
        ...
        ...     def process(self, payload: str, context: TaskContext) -> None:
        ...         context.logger.info("hello, %s", payload)
    """

    type: str
    """The task type that it processes."""
    schema: Any = None
    """A marshmallow Schema (class or instance) or a dataclass; wins over ``T``."""
    retry: RetryPolicy | None = None
    timeout: timedelta | float | str | EllipsisType | None = ...
    """Of one attempt; ``None`` for none at all, ``...`` for what the settings say."""
    limits: Limits | None = None
    isolation: str = "thread"
    """``"thread"``, or ``"process"`` for code that can not be interrupted: a process of its own per attempt."""
    store_result: bool = False
    """Keep what ``process`` returns as the task's ``result``."""

    @abstractmethod
    def process(self, payload: T, context: TaskContext) -> Any:
        """Do the work of one task, in its own app context and transaction."""


def processor_from_function(
    function: Callable[..., Any], task_type: str, max_bytes: int = DEFAULT_MAX_BYTES, **options: Unpack[ProcessorOptions]
) -> Processor:
    """Make a processor of a function, method, partial or other callable, decorated or not.

    Raises:
        ConfigError: lists everything that is wrong with its name, its options, its parameters and its annotations.
    """
    faults: list[str] = []
    handler = _kept(faults, lambda: inspect_handler(function))
    return _processor(handler, None, task_type, max_bytes, options, faults)


def processor_from_object(processor: TaskProcessor[Any], max_bytes: int = DEFAULT_MAX_BYTES) -> Processor:
    """Make a processor of an instance of a ``TaskProcessor`` class.

    Raises:
        ConfigError: lists everything that is wrong with it.
    """
    if isinstance(processor, type):
        raise ConfigError(f"{processor.__qualname__} is a class: register an instance of it, {processor.__name__}()")
    if not isinstance(processor, TaskProcessor):
        raise ConfigError(f"{processor!r:.80} is no TaskProcessor: derive its class from TaskProcessor, or decorate a function with task()")
    options: ProcessorOptions = {
        "schema": processor.schema,
        "retry": processor.retry,
        "timeout": processor.timeout,
        "limits": processor.limits,
        "isolation": processor.isolation,
        "store_result": processor.store_result,
    }
    faults: list[str] = []
    argument = _kept(faults, lambda: _payload_argument(processor))
    handler = _kept(faults, lambda: inspect_handler(processor.process))
    return _processor(handler, argument, getattr(processor, "type", None), max_bytes, options, faults)


def _processor(
    handler: Handler | None, argument: Any, task_type: str | None, max_bytes: int, options: ProcessorOptions, faults: list[str]
) -> Processor:
    place = handler.place if handler else "the handler"
    name_fault = f"{place} names no task type: set type = 'email.send', say" if task_type is None else type_fault(task_type)
    faults += [name_fault] if name_fault else []
    faults += [f"{place}: {fault}" for fault in _option_faults(options)]
    name = str(task_type)
    codec = _kept(faults, lambda: _codec(handler, argument, name, max_bytes, options))
    if faults or handler is None or codec is None:
        raise ConfigError(faults)
    timeout = options.get("timeout", ...)
    return Processor(
        type=name,
        call=handler.call,
        codec=codec,
        place=handler.place,
        retry=options.get("retry"),
        timeout=timeout if timeout is None or isinstance(timeout, EllipsisType) else seconds(timeout),
        limits=options.get("limits"),
        isolation=options.get("isolation", "thread"),
        store_result=options.get("store_result", False),
    )


def _codec(handler: Handler | None, argument: Any, name: str, max_bytes: int, options: ProcessorOptions) -> PayloadCodec | None:
    if handler is None:
        return None
    hints = (options.get("schema"), argument, handler.annotation)
    return codec_for(name, next((hint for hint in hints if hint is not None), None), max_bytes, localns=handler.localns)


def _kept(faults: list[str], make: Callable[[], _R]) -> _R | None:
    """Return what ``make`` makes, or keep its faults, so that one error can list all."""
    try:
        return make()
    except ConfigError as error:
        faults += error.faults
        return None


def _option_faults(options: Mapping[str, Any]) -> list[str]:
    faults: list[str] = []
    retry, limits, timeout = options.get("retry"), options.get("limits"), options.get("timeout", ...)
    if retry is not None and not isinstance(retry, RetryPolicy):
        faults.append(f"retry is {retry!r}: give a RetryPolicy, such as RetryPolicy(max_attempts=5)")
    if limits is not None and not isinstance(limits, Limits):
        faults.append(f"limits is {limits!r}: give Limits, such as Limits(per_node=2, cluster_wide=10)")
    if timeout is not None and not isinstance(timeout, EllipsisType):
        try:
            if seconds(timeout) == 0:
                faults.append("timeout is 0: give a longer duration, or None for no timeout")
        except ValueError as error:
            faults.append(f"timeout: {error}; or None for no timeout")
    isolation, store_result = options.get("isolation", "thread"), options.get("store_result", False)
    if isolation not in ISOLATIONS:
        faults.append(f"isolation is {isolation!r}: give 'thread' or 'process'")
    if not isinstance(store_result, bool):
        faults.append(f"store_result is {store_result!r}: give True or False")
    return faults


# --- the payload of TaskProcessor[T] ------------------------------------------------------------------------------------------


def _payload_argument(processor: TaskProcessor[Any]) -> Any:
    """Return ``T`` as the processor's class gives it, through generic classes in between; ``None`` where it does not."""
    cls = type(processor)
    argument = _argument_of(cls)
    if argument is None or isinstance(argument, TypeVar):
        return None
    return evaluated(argument, vars(sys.modules[cls.__module__]), cls.__qualname__, enclosing_names(cls.process))


def _argument_of(cls: Any) -> Any:
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin, arguments = get_origin(base) or base, get_args(base)
        if origin is TaskProcessor:
            return arguments[0] if arguments else None
        if isinstance(origin, type) and issubclass(origin, TaskProcessor):
            inner = _argument_of(origin)
            given = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
            if isinstance(inner, TypeVar):
                return given.get(inner, inner)
            open_ones = getattr(inner, "__parameters__", ())
            return inner[tuple(given.get(one, Any) for one in open_ones)] if open_ones and not isinstance(inner, type) else inner
    return None

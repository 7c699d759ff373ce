"""What may be a handler, and how it is called."""

from __future__ import annotations

import dataclasses
import functools
import sys
import typing
from collections.abc import Callable
from datetime import date, timedelta
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import pytest
from marshmallow import Schema, fields

from flask_taskengine.domain.errors import ConfigError, PayloadError
from flask_taskengine.domain.limits import Limits
from flask_taskengine.domain.retry import RetryPolicy
from flask_taskengine.engine.context import TaskContext
from flask_taskengine.engine.processor import ProcessorOptions, TaskProcessor, processor_from_function, processor_from_object

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

T = TypeVar("T")
U = TypeVar("U")
CONTEXT: Any = object()


@dataclasses.dataclass(frozen=True)
class Mail:
    """A typed payload."""

    to: str


FORM = {"to": "a@example.org"}
MAIL = Mail("a@example.org")


class MailSchema(Schema):
    """Describes the same, and loads a dict."""

    to = fields.String(required=True)


def loose(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate without functools.wraps."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def tight(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate with functools.wraps."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def explicit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate with functools.wraps, and with parameters of its own."""

    @functools.wraps(function)
    def wrapper(payload: Any) -> Any:
        return function(payload, "from the decorator")

    return wrapper


class Counting:
    """A decorator that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.calls = 0
        self._function = function

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self._function(*args)


def one(payload: Mail) -> Any:
    """Take the payload."""
    return (payload,)


def two(payload: Mail, context: TaskContext) -> Any:
    """Take both."""
    return payload, context


@dataclasses.dataclass
class Callable_:  # noqa: N801 - Callable is taken.
    """An object that can be called; its fields are annotated, too."""

    payload: int = 0

    def __call__(self, payload: Mail, context: TaskContext) -> Any:
        """Take both."""
        return payload, context


class Service:
    """Handlers that are methods."""

    def one(self, payload: Mail) -> Any:
        """Take the payload."""
        return (payload,)

    @tight
    def two(self, payload: Mail, context: TaskContext) -> Any:
        """Take both, decorated."""
        return payload, context

    @classmethod
    def for_class(cls, payload: Mail) -> Any:
        """Take the payload."""
        return (payload,)

    @staticmethod
    def static(payload: Mail, context: TaskContext) -> Any:
        """Take both."""
        return payload, context


def keyword_context(payload: Mail, *, context: TaskContext) -> Any:
    """Take the context by keyword."""
    return payload, context


def keyword_ctx(payload: Mail, *, ctx: TaskContext | None = None) -> Any:
    """Take the context under another name."""
    return payload, ctx


def optional_context(payload: Mail, context: TaskContext | None = None) -> Any:
    """Take the context by a parameter with a default."""
    return payload, context


def other_names(mail: Mail, ctx: Any) -> Any:
    """Take both by position, whatever they are called."""
    return mail, ctx


def with_defaults(payload: Mail, retries: int = 3, *, verbose: bool = False, **more: Any) -> Any:
    """Take the payload; all else has defaults."""
    assert (retries, verbose, more) == (3, False, {})
    return (payload,)


def positional_only(payload: Mail, context: TaskContext, /) -> Any:
    """Take both by position only."""
    return payload, context


def unknown_to_python(payload: Mail, context: Unknown) -> Unknown:
    """Be annotated with names that only type checkers know, except for the payload."""
    return payload, context


def rest(payload: Mail, *others: Any) -> Any:
    """Take the payload and whatever else is given."""
    return payload, *others


def bound_first(prefix: str, payload: Mail, context: TaskContext) -> Any:
    """Take something before the payload."""
    assert prefix == "p"
    return payload, context


PAYLOAD_ONLY = [
    one,
    tight(one),
    tight(tight(one)),
    functools.lru_cache(one),
    functools.partial(one),
    Service().one,
    Service.for_class,
    with_defaults,
    rest,
    Counting(one),
    tight(functools.partial(one)),
]
BOTH = [
    two,
    tight(two),
    tight(tight(two)),
    Callable_(),
    tight(Callable_()),
    Service().two,
    Service.static,
    keyword_context,
    keyword_ctx,
    optional_context,
    other_names,
    positional_only,
    unknown_to_python,
    tight(unknown_to_python),
    functools.partial(bound_first, "p"),
    Counting(two),
]


@pytest.mark.parametrize("function", PAYLOAD_ONLY)
def test_a_handler_of_the_payload_gets_the_typed_payload_alone(function: Any) -> None:
    """However it is wrapped or bound, the handler is called with the payload, and its annotation is found."""
    processor = processor_from_function(function, "t")
    payload = processor.codec.load(FORM)
    assert payload == MAIL
    assert processor.call(payload, CONTEXT) == (MAIL,)


@pytest.mark.parametrize("function", BOTH)
def test_a_handler_of_both_gets_both(function: Any) -> None:
    """However it is wrapped or bound, the handler is called with payload and context, and its annotation is found."""
    processor = processor_from_function(function, "t")
    assert processor.call(processor.codec.load(FORM), CONTEXT) == (MAIL, CONTEXT)


def test_a_decorator_without_wraps_hides_all_but_the_payload() -> None:
    """`(*args, **kwargs)` alone gets the payload as plain JSON: neither annotation nor the wish for a context can be seen."""
    processor = processor_from_function(loose(one), "t")
    assert processor.call(processor.codec.load(FORM), CONTEXT) == (FORM,)


def test_a_decorator_with_parameters_of_its_own_is_believed() -> None:
    """The outermost function that names its parameters says how it is called; the annotation is the wrapped function's."""
    processor = processor_from_function(explicit(two), "t")
    assert processor.call(processor.codec.load(FORM), CONTEXT) == (MAIL, "from the decorator")


def test_a_handler_may_want_the_context_alone_or_nothing() -> None:
    """What a schedule runs often has no payload."""

    def by_name(context: Any) -> Any:
        return context

    def by_annotation(ctx: TaskContext) -> Any:
        return ctx

    def by_keyword(*, context: Any) -> Any:
        return context

    for function in (lambda context: context, by_annotation, by_keyword):
        assert processor_from_function(function, "t").call("payload", CONTEXT) is CONTEXT
    assert processor_from_function(lambda: "done", "t").call("payload", CONTEXT) == "done"
    # Annotated with something else, `context` is the name of a payload.
    assert processor_from_function(by_name, "t").call("payload", CONTEXT) == "payload"


def test_a_plain_handler_stays_what_it_was() -> None:
    """The handler itself is called, with nothing in between, where it takes both."""
    assert processor_from_function(two, "t").call is two


# --- what can not be a handler --------------------------------------------------------------------------------------------


async def coroutine(payload: Any) -> None:
    """Be async."""


async def async_generator(payload: Any) -> Any:
    """Be async and a generator."""
    yield


def generator(payload: Any) -> Any:
    """Be a generator."""
    yield


class AsyncCallable:
    """An object whose call is async."""

    async def __call__(self, payload: Any) -> None:
        """Be async."""


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (coroutine, "is async, handlers are plain functions: make it one with asgiref.sync.async_to_sync"),
        (async_generator, "is async"),
        (AsyncCallable(), "is async"),
        (functools.partial(coroutine), "is async"),
        (generator, "is a generator, whose body would never run"),
        (Mail, r"is a class: register an instance of it with engine.register(Mail())"),
        (5, "int can not be called: a handler takes (payload) or (payload, context)"),
        (lambda a, b, c: None, "also asks for c: a handler takes (payload) or (payload, context)"),
        (lambda a, *, b, c: None, "also asks for b, c"),
        (lambda context, payload: None, "takes the context first"),
    ],
)
def test_what_can_not_be_called_like_a_handler_is_refused(function: Any, part: str) -> None:
    """The error says where the function stands, what is wrong, and what to do."""
    with pytest.raises(ConfigError) as caught:
        processor_from_function(function, "t")
    (fault,) = caught.value.faults
    assert part in fault
    if not isinstance(function, (int, functools.partial)):
        assert __name__ in fault


def test_a_coroutine_that_a_decorator_did_not_run_is_an_error_at_run_time() -> None:
    """A task whose body never ran has not succeeded."""
    processor = processor_from_function(tight(coroutine), "t")
    with pytest.raises(ConfigError, match="its decorator does not run it"):
        processor.call(1, CONTEXT)


def test_an_async_function_that_its_decorator_runs_is_fine() -> None:
    """What `app.ensure_sync` and its kind return is a plain function."""

    async def work(payload: int) -> int:
        return payload + 1

    @functools.wraps(work)
    def run(payload: int) -> Any:
        try:
            work(payload).send(None)
        except StopIteration as stop:
            return stop.value

    assert processor_from_function(run, "t").call(1, CONTEXT) == 2


# --- annotations ----------------------------------------------------------------------------------------------------------


def test_an_annotation_that_can_not_be_resolved_is_a_clear_error() -> None:
    """A payload type that only type checkers import can not be built at run time."""

    def handler(payload: Unknown) -> None: ...

    with pytest.raises(ConfigError) as caught:
        processor_from_function(handler, "t")
    (fault,) = caught.value.faults
    assert "the payload's annotation 'Unknown' can not be resolved (name 'Unknown' is not defined)" in fault
    assert fault.endswith("define or import it at module level, and not for type checkers only")


def test_types_of_an_app_factory_are_found_while_it_runs() -> None:
    """A handler and its payload may be defined inside of a function, even in terms of each other."""

    def create_app() -> Any:
        @dataclasses.dataclass
        class Order:
            lines: list[Line]

        @dataclasses.dataclass
        class Line:
            sku: str

        def place(payload: Order) -> Any:
            return payload.lines[0].sku

        class Place(TaskProcessor["Order"]):
            type = "order.place"

            def process(self, payload: Any, context: TaskContext) -> Any:
                return payload.lines[0].sku

        return processor_from_function(tight(place), "order.place"), processor_from_object(Place())

    for processor in create_app():
        assert processor.call(processor.codec.load({"lines": [{"sku": "a"}]}), CONTEXT) == "a"


def test_a_schema_wins_over_the_annotation() -> None:
    """`schema=` decides what the handler gets; a dataclass will do, too."""
    assert processor_from_function(one, "t", schema=MailSchema).codec.load(FORM) == FORM
    assert processor_from_function(lambda payload: None, "t", schema=Mail).codec.load(FORM) == MAIL


def test_the_size_limit_of_the_codec_can_be_given() -> None:
    """The limit holds where enqueueing gives no other."""
    with pytest.raises(PayloadError, match="the limit is 5"):
        processor_from_function(one, "t", 5).codec.dump(MAIL)


# --- options --------------------------------------------------------------------------------------------------------------


def test_options_are_left_to_the_settings_by_default() -> None:
    """A processor that says nothing has no policy, no limits, and a timeout that is not even None."""
    processor = processor_from_function(one, "t")
    assert (processor.retry, processor.timeout, processor.limits) == (None, ..., None)
    assert (processor.isolation, processor.store_result) == ("thread", False)


def test_options_are_kept() -> None:
    """What is said is what the processor has."""
    retry, limits = RetryPolicy(max_attempts=3), Limits(per_node=2)
    processor = processor_from_function(one, "t", retry=retry, timeout="5m", limits=limits, isolation="process", store_result=True)
    assert (processor.type, processor.retry, processor.timeout, processor.limits) == ("t", retry, 300.0, limits)
    assert (processor.isolation, processor.store_result) == ("process", True)


@pytest.mark.parametrize(
    ("given", "kept"), [(30, 30.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), ("2h", 7200.0), (None, None), (..., ...)]
)
def test_a_timeout_has_every_form_of_a_duration(given: Any, kept: float | EllipsisType | None) -> None:
    """Seconds, timedelta and text are the same; None is no timeout, and `...` the settings' one."""
    assert processor_from_function(one, "t", timeout=given).timeout == kept


def test_all_faults_are_in_one_error() -> None:
    """Whoever got five things wrong learns of five."""

    def handler(payload: object, context: TaskContext, more: int) -> None: ...

    wrong: Any = {"retry": 5, "timeout": "soon", "limits": {"per_node": 1}, "isolation": "green", "store_result": 1, "schema": {}}
    with pytest.raises(ConfigError) as caught:
        processor_from_function(one, " t", **wrong)
    parts = [
        "white space",
        "retry is 5: give a RetryPolicy",
        "timeout: 'soon'",
        "limits is {",
        "isolation is 'green'",
        "store_result is 1",
        "{}",
    ]
    assert len(caught.value.faults) == len(parts)
    for part in parts:
        assert any(part in fault for fault in caught.value.faults), part
    with pytest.raises(ConfigError) as caught:
        processor_from_function(handler, "", timeout=0)
    assert len(caught.value.faults) == 3
    assert any("timeout is 0" in fault for fault in caught.value.faults)


# --- the class form -------------------------------------------------------------------------------------------------------


class Base(TaskProcessor[T]):
    """A generic class in between."""

    retry = RetryPolicy(max_attempts=2)

    def process(self, payload: T, context: TaskContext) -> Any:
        """Return what came."""
        return payload, context


class Many(Base[list[T]]):
    """Another, which changes the argument."""


class Named(Base[T], Generic[U, T]):
    """One with more parameters than it passes on."""


class Mixin:
    """No processor at all."""


class ByArgument(Base[Mail]):
    """Names its payload through a generic class."""

    type = "mail"


class ByName(Base["Mail"]):
    """Names it in text."""

    type = "mail"


class Inherited(ByArgument):
    """Inherits all."""


class SecondBase(Mixin, Base[Mail]):
    """Names it in a base that is not the first."""

    type = "mail"


class Renamed(Named[int, Mail]):
    """Names it as the second of two arguments."""

    type = "mail"


class ByAnnotation(TaskProcessor):  # type: ignore[type-arg] # as hosts without type checkers write it.
    """Names it in the annotation of `process`."""

    type = "mail"

    def process(self, payload: Mail, context: TaskContext) -> Any:
        """Return what came."""
        return payload, context


class StillGeneric(Base[T]):
    """Leaves the payload open."""

    type = "mail"

    def process(self, payload: Mail, context: TaskContext) -> Any:  # type: ignore[override]
        """Return what came."""
        return payload, context


@pytest.mark.parametrize("cls", [ByArgument, ByName, Inherited, SecondBase, Renamed, ByAnnotation, StillGeneric])
def test_the_payload_of_a_class_is_found(cls: type[TaskProcessor[Any]]) -> None:
    """Through generic arguments, inheritance, text and annotations alike."""
    processor = processor_from_object(cls())
    assert processor.type == "mail"
    assert processor.call(processor.codec.load(FORM), CONTEXT) == (MAIL, CONTEXT)
    assert "process (" in processor.place


def test_an_argument_may_be_built_of_a_parameter() -> None:
    """`Many[Mail]` is a processor of `list[Mail]`."""

    class Mails(Many[Mail]):
        type = "mails"

    assert processor_from_object(Mails()).codec.load([FORM]) == [MAIL]


def test_a_class_without_any_hint_takes_plain_json() -> None:
    """Nothing is checked where nothing is said."""

    class Anything(TaskProcessor[Any]):
        type = "anything"

        def process(self, payload: Any, context: TaskContext) -> Any:
            return payload

    processor = processor_from_object(Anything())
    assert processor.call(processor.codec.load({"a": 1}), CONTEXT) == {"a": 1}


def test_class_attributes_are_options() -> None:
    """Options stand in the class or are set on the instance, and are inherited."""

    class Report(TaskProcessor[date]):
        type = "report"
        timeout = "1h"
        limits = Limits(cluster_wide=1)
        isolation = "process"
        store_result = True

        def process(self, payload: date, context: TaskContext) -> str:
            return payload.isoformat()

    processor = processor_from_object(Report())
    assert (processor.timeout, processor.limits, processor.isolation, processor.store_result) == (
        3600.0,
        Limits(cluster_wide=1),
        "process",
        True,
    )
    assert processor_from_object(ByArgument()).retry == RetryPolicy(max_attempts=2)


def test_a_schema_of_a_class_wins() -> None:
    """`schema` decides over the generic argument."""

    class Loaded(Base[Mail]):
        type = "mail"
        schema = MailSchema

    assert processor_from_object(Loaded()).codec.load(FORM) == FORM


def test_process_may_leave_the_context_out() -> None:
    """A method is called as a function would be."""

    class Short(TaskProcessor[UUID]):
        type = "short"

        def process(self, payload: UUID) -> Any:  # type: ignore[override]
            return payload

    processor = processor_from_object(Short())
    assert processor.call(processor.codec.load(str(UUID(int=1))), CONTEXT) == UUID(int=1)


class Untyped(Base[Mail]):
    """Names no task type."""


class Twisted(TaskProcessor[typing.IO[str]]):
    """Has everything wrong."""

    type = "*"
    timeout = -1
    isolation = "both"

    async def process(self, payload: Any, context: TaskContext) -> None:
        """Be async."""


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (ByArgument, ["ByArgument is a class: register an instance of it, ByArgument()"]),
        (one, ["is no TaskProcessor: derive its class from TaskProcessor, or decorate a function with task()"]),
        (Untyped(), ["process", "names no task type: set type = 'email.send', say"]),
        (Twisted(), ["is async", "'*' means every type", "timeout: -1", "isolation is 'both'"]),
    ],
)
def test_what_can_not_be_registered_is_refused(given: Any, parts: list[str]) -> None:
    """Every fault of an object is named, too."""
    with pytest.raises(ConfigError) as caught:
        processor_from_object(given)
    for part in parts:
        assert part in str(caught.value)


def test_a_class_without_process_can_not_be_made() -> None:
    """Python refuses it before we do."""

    class Empty(TaskProcessor[Any]):
        type = "empty"

    with pytest.raises(TypeError, match="process"):
        Empty()  # type: ignore[abstract]


def test_options_are_the_attributes_of_the_class_form() -> None:
    """Both forms know the same options."""
    attributes = set(TaskProcessor.__annotations__) - {"type"}
    assert attributes == set(ProcessorOptions.__annotations__)


def test_no_frame_is_kept_alive() -> None:
    """What is read of an app factory's names is not held by the processor."""

    class Held:
        pass

    def create_app() -> Any:
        held = Held()

        def handler(payload: Mail) -> None: ...

        return processor_from_function(handler, "t"), sys.getrefcount(held)

    processor, references = create_app()
    assert references <= 3
    assert processor.codec.load(FORM) == MAIL

"""Traces by OpenTelemetry: a span where tasks are enqueued, and one around each run, which continues or links to it.

The API only: which provider and exporter run is the app's choice. Without a provider all of it does nothing.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Final, Literal, TypeVar

from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, detach, set_value
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..domain.outcome import Failure
from ..domain.task import Claimed, Enqueued, NewTask
from ..runtime.host import Write
from ..runtime.run import current
from . import names

T = TypeVar("T")

_TRACE, _BAGGAGE = TraceContextTextMapPropagator(), W3CBaggagePropagator()
_EMPTY = Context()
_NOTHING = _EMPTY, trace.INVALID_SPAN_CONTEXT
_PLAIN = re.compile(r'\{"traceparent": ?"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"\}')
_LONGEST_CONTEXT = 16_384
"""Characters of a stored context; more than W3C allows for its three headers together."""

_logger = logging.getLogger("flask_taskengine")


@dataclass(slots=True)
class _Attempt:
    span: Span | None
    """None where it is known that nothing is recorded."""
    context: Context
    began: int
    """Nanoseconds since the epoch."""


class Tracer:
    """Follows the tasks of one app.

    Args:
        mode: ``"child"``: a run belongs to the trace of its enqueue; ``"link"``: it begins a trace that is linked to that.
    """

    follows: Final = frozenset({"task_started", "task_timed_out", *names.OUTCOMES})

    def __init__(self, mode: Literal["child", "link"]) -> None:
        self._links = mode == "link"
        self._tracer = trace.get_tracer("flask_taskengine", version("flask-taskengine"))
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self._provider: object = None
        self._obeys = False
        self._last: tuple[object, Context, SpanContext] = None, *_NOTHING
        self._blamed = False

    # --- enqueue ------------------------------------------------------------------------------------------------------

    def enqueue(self, news: Sequence[NewTask], write: Write) -> list[Enqueued]:
        """Write tasks inside a producer span, whose context is written with each of them."""
        types = {new.type for new in news}
        name = f"enqueue {news[0].type}" if len(types) == 1 else "enqueue"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=_of_enqueue(news, types)) as span:
            carrier = _carrier()
            made = write([replace(new, trace_context=json.dumps(carrier)) for new in news] if carrier else news)
            if len(made) == 1 and span.is_recording():
                span.set_attribute(names.MESSAGE_ID, str(made[0].id))
                span.set_attribute(names.TASK_ID, made[0].id)
                span.set_attribute(names.TASK_CREATED, made[0].created)
            return made

    # --- run ----------------------------------------------------------------------------------------------------------

    def announce(self, name: str, fields: Mapping[str, Any], tell: Callable[[], None]) -> None:
        """Tell of an event inside the span of the attempt that it is about; the first begins the span and the last ends it."""
        if name == "task_started":
            self._safely(self._begin, fields)
            tell()
            return
        attempt = self._attempts.get((fields["task_id"], fields["token"]))
        if attempt is None:
            tell()
        elif name == "task_succeeded" and attempt.span is None:
            # Most of all events: nothing is to be seen of them but a line, which is told the task.
            del self._attempts[fields["task_id"], fields["token"]]
            tell()
        else:
            token = attach(attempt.context)
            try:
                tell()
            finally:
                detach(token)
            if name in names.OUTCOMES:
                self._safely(self._end, attempt, names.OUTCOMES[name], fields)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Make no spans inside, of drivers either."""
        token = attach(set_value("suppress_instrumentation", value=True))
        try:
            yield
        finally:
            detach(token)

    def carry(self) -> dict[str, str]:
        """Return the current context, for another process."""
        return _carrier()

    def resume(self, carried: Mapping[str, str]) -> None:
        """Continue in this thread what another process has carried over."""
        attach(_extracted(carried))

    def flush(self, timeout: float) -> None:
        """Let the provider export what it holds back, within so many seconds."""
        provider = trace.get_tracer_provider()
        if hasattr(provider, "force_flush"):
            self._safely(provider.force_flush, int(timeout * 1000))

    def _begin(self, fields: Mapping[str, Any]) -> None:
        run = current.get()
        if run is None:
            return
        before, remote = self._stored_with(run.task)
        if remote.is_valid and not (self._links or remote.trace_flags.sampled) and self._follows_parents():
            self._attempts[run.task.id, run.task.claims] = _Attempt(None, before, 0)
            attach(before)
            return
        links = [Link(remote)] if self._links and remote.is_valid else []
        if links:
            before = set_span_in_context(trace.INVALID_SPAN, before)
        began = time.time_ns()
        span = self._tracer.start_span(
            f"process {run.task.type}",
            before,
            SpanKind.CONSUMER,
            _of_run(run.task, fields),
            links,
            began,
            record_exception=False,
            set_status_on_exception=False,
        )
        attempt = self._attempts[run.task.id, run.task.claims] = _Attempt(span, set_span_in_context(span, before), began)
        # Never detached: each run has its context variables to itself.
        attach(attempt.context)

    def _stored_with(self, task: Claimed) -> tuple[Context, SpanContext]:
        """Return what was stored with a task; that of the last one again where it is the same, as in a batch."""
        # One read and one write, since other threads do the same.
        stored, last = task.trace_context, self._last
        if stored is None or stored != last[0]:
            last = self._last = (stored, *context_of(stored))
        return last[1:]

    def _follows_parents(self) -> bool:
        """Say whether the provider's sampler is known to drop whatever a parent elsewhere has dropped: then it need not be asked."""
        provider = trace.get_tracer_provider()
        if provider is not self._provider:
            self._provider = provider
            sampler = getattr(provider, "sampler", None)
            said = sampler.get_description() if sampler is not None else ""
            self._obeys = said.startswith("ParentBased{") and "remoteParentNotSampled:AlwaysOffSampler" in said
        return self._obeys

    def _end(self, attempt: _Attempt, outcome: str, fields: Mapping[str, Any]) -> None:
        del self._attempts[fields["task_id"], fields["token"]]
        span, failure = attempt.span, fields.get("failure")
        if span is None or not span.is_recording():
            return
        span.set_attribute(names.TASK_OUTCOME, outcome)
        if failure is not None:
            _record(span, failure)
        elif outcome == "lease_lost":
            span.set_status(Status(StatusCode.ERROR, "the lease was lost: what the attempt wrote is rolled back"))
        # Told by the completer, after others have been recorded with it, the end of the handler lies in the past.
        elsewhere = current.get() is None and fields.get("duration") is not None
        span.end(attempt.began + int(fields["duration"] * 1e9) if elsewhere else None)

    def _safely(self, step: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return step(*arguments)
        except Exception:
            if not self._blamed:
                self._blamed = True
                _logger.exception("tracing failed; the tasks are not affected, and this is logged once")
            return None


def context_of(stored: str | None) -> tuple[Context, SpanContext]:
    """Return what was stored with a task, and the span in it; an empty context where there is nothing, or nothing that can be read."""
    if not isinstance(stored, str):
        return _NOTHING
    plain = _PLAIN.fullmatch(stored)
    if plain is not None:
        # What nearly every row has, read without the library's look at what it has not.
        span = SpanContext(int(plain[1], 16), int(plain[2], 16), is_remote=True, trace_flags=TraceFlags(int(plain[3], 16)))
        return (set_span_in_context(NonRecordingSpan(span), _EMPTY), span) if span.is_valid else _NOTHING
    try:
        carried = json.loads(stored)
    except (ValueError, RecursionError):
        return _NOTHING
    context = _extracted(carried) if isinstance(carried, dict) else _EMPTY
    return context, get_current_span(context).get_span_context()


def _extracted(carried: Mapping[str, Any]) -> Context:
    carrier = {name: text for name, text in carried.items() if isinstance(text, str) and len(text) <= _LONGEST_CONTEXT}
    context = _TRACE.extract(carrier, _EMPTY)
    return _BAGGAGE.extract(carrier, context) if "baggage" in carrier else context


def record_fields() -> dict[str, str]:
    """Return the ids of the current span as fields of a log record; nothing where there is none."""
    context = get_current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if context.is_valid else {}


def _carrier() -> dict[str, str]:
    """Return the current context by the names of the W3C, as far as anybody must accept it."""
    carrier: dict[str, str] = {}
    _TRACE.inject(carrier)
    _BAGGAGE.inject(carrier)
    if sum(map(len, carrier.values())) > _LONGEST_CONTEXT:
        del carrier["baggage"]
    return carrier


def _of_enqueue(news: Sequence[NewTask], types: set[str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {names.SYSTEM: "flask_taskengine", names.OPERATION: "enqueue", names.OPERATION_TYPE: "send"}
    if len(types) == 1:
        attributes |= {names.DESTINATION: news[0].type, names.TASK_TYPE: news[0].type}
    return attributes | ({names.TASK_PRIORITY: news[0].priority} if len(news) == 1 else {names.BATCH_COUNT: len(news)})


def _of_run(task: Claimed, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        names.SYSTEM: "flask_taskengine",
        names.OPERATION: "process",
        names.OPERATION_TYPE: "process",
        names.DESTINATION: task.type,
        names.MESSAGE_ID: str(task.id),
        names.TASK_TYPE: task.type,
        names.TASK_ID: task.id,
        names.TASK_ATTEMPT: task.attempts,
        names.TASK_PRIORITY: task.priority,
        names.TASK_WAITED: fields["waited"],
        names.NODE: fields["node"],
    }


def _record(span: Span, failure: Failure) -> None:
    span.set_attribute(names.ERROR_TYPE, failure.error_class)
    span.set_status(Status(StatusCode.ERROR, str(failure)))
    event = {"exception.type": failure.error_class, "exception.message": failure.message, "exception.stacktrace": failure.traceback or ""}
    span.add_event("exception", event)

"""Spans that were made in this process, and in others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra test brings opentelemetry-sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


@dataclass(frozen=True, slots=True)
class Seen:
    """A span that has ended, as tests compare it."""

    name: str
    kind: str
    trace_id: int
    span_id: int
    parent_id: int | None
    links: list[int]
    """The ids of the spans that it is linked to."""
    attributes: dict[str, Any]
    status: str
    description: str | None
    events: list[dict[str, Any]]
    began: int
    ended: int
    pid: int = field(default_factory=os.getpid)


def seen_of(span: ReadableSpan) -> Seen:
    """Return what tests compare of a span."""
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    return Seen(
        name=span.name,
        kind=span.kind.name,
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent_id=None if parent is None else parent.span_id,
        links=[link.context.span_id for link in span.links],
        attributes=dict(span.attributes or {}),
        status=span.status.status_code.name,
        description=span.status.description,
        events=[{"name": event.name} | dict(event.attributes or {}) for event in span.events],
        began=span.start_time or 0,
        ended=span.end_time or 0,
    )


class Collector(SpanExporter):
    """Hands every span that has ended to whoever listens."""

    def __init__(self) -> None:
        self.take: Callable[[Seen], None] | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.take is not None:
            for span in spans:
                self.take(seen_of(span))
        return SpanExportResult.SUCCESS


_collector = Collector()
_provider: TracerProvider | None = None


def provider() -> TracerProvider:
    """Return the provider of this process, which there can be only one of."""
    global _provider  # noqa: PLW0603 - OpenTelemetry's own is global, too
    if _provider is None:
        _provider = TracerProvider()
        _provider.add_span_processor(SimpleSpanProcessor(_collector))
        trace.set_tracer_provider(_provider)
    return _provider


@contextmanager
def collected() -> Iterator[list[Seen]]:
    """Collect the spans that end in this process."""
    provider()
    spans: list[Seen] = []
    _collector.take = spans.append
    try:
        yield spans
    finally:
        _collector.take = None


class FileExporter(SpanExporter):
    """Appends each span to a file, so that spans of many processes come together."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.write("".join(json.dumps({name: getattr(seen_of(span), name) for name in Seen.__slots__}) + "\n" for span in spans))
        return SpanExportResult.SUCCESS


def spans_in(path: Path) -> list[Seen]:
    """Read what a ``FileExporter`` has written, oldest first."""
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((Seen(**json.loads(line)) for line in lines), key=lambda span: span.began)

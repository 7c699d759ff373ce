"""A host whose web process and workers write their spans into one file."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation.flask import FlaskInstrumentor
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from flask_taskengine import RetryPolicy, TaskContext, TaskEngine
from tests.support.spans import FileExporter

db = SQLAlchemy()
engine = TaskEngine()


@engine.task("ship", retry=RetryPolicy(max_attempts=3, base_backoff=0, jitter=0))
def ship(payload: dict[str, Any], context: TaskContext) -> None:
    """Fail, or take the process down, as often as the payload says; then write."""
    logging.getLogger("app").warning("shipping for %s", baggage.get_baggage("tenant"))
    if context.attempt <= payload.get("fails", 0):
        raise ValueError("no")
    if context.attempt <= payload.get("kills", 0):
        os.kill(os.getpid(), signal.SIGKILL)
    db.session.execute(sa.text("INSERT INTO shipped (task_id) VALUES (:id)"), {"id": context.task_id})


@engine.task("pack", isolation="process")
def pack(payload: Any) -> None:
    """Work in a process of its own, and enqueue from there."""
    with trace.get_tracer("app").start_as_current_span("packing"):
        engine.enqueue("ship", {})
    db.session.commit()


@engine.on_enqueued
def say(task_type: str) -> None:
    """Say which process is told."""
    logging.getLogger("app").warning("process %d heard of %s", os.getpid(), task_type)


def create_app() -> Flask:
    """Make a host with tracing; where its spans go is said by the environment."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(Path(os.environ["TRACED_FILE"]))))
    trace.set_tracer_provider(provider)
    PsycopgInstrumentor().instrument()
    SQLite3Instrumentor().instrument()
    app = Flask("host")
    app.config.from_prefixed_env()
    FlaskInstrumentor().instrument_app(app)  # type: ignore[no-untyped-call]
    db.init_app(app)
    engine.init_app(app)

    @app.post("/orders/<int:number>")
    def order(number: int) -> dict[str, int]:
        token = context.attach(baggage.set_baggage("tenant", f"tenant {number}"))
        made = engine.enqueue("ship", {"fails": number})
        context.detach(token)
        db.session.commit()
        return {"id": made.id}

    return app

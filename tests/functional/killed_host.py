"""A host whose tasks leave a trace in the database, exactly one each, whatever becomes of the processes that run them."""

from __future__ import annotations

from typing import Any

from flask import Flask

from flask_taskengine import RetryPolicy, TaskContext, TaskEngine
from tests.functional.supervised import Effect, db

engine = TaskEngine()
FOR_EVER = RetryPolicy(max_attempts=None, base_backoff=0.02, max_backoff=0.05)


def create_app() -> Flask:
    """Make the host; its settings come from ``FLASK_…`` variables."""
    app = Flask(__name__)
    app.config.from_mapping(TASKENGINE_LEASE=2, TASKENGINE_HEARTBEAT_INTERVAL=0.5, TASKENGINE_POLL_INTERVAL=1)
    app.config.from_prefixed_env()
    db.init_app(app)
    engine.init_app(app)
    return app


@engine.task("write", retry=FOR_EVER)
def write(payload: dict[str, Any]) -> None:
    """Write a row in the transaction that completes the task, and take long enough to be killed in between."""
    db.session.add(Effect(note=payload["note"]))
    db.session.flush()
    sum(range(payload["work"]))


@engine.task("stumble", retry=FOR_EVER)
def stumble(payload: dict[str, Any], context: TaskContext) -> None:
    """Write a row, and fail at the first attempt."""
    db.session.add(Effect(note=payload["note"]))
    db.session.flush()
    if context.attempt == 1:
        raise ValueError("stumbled")


@engine.task("idle", retry=FOR_EVER)
def idle(payload: dict[str, Any]) -> None:
    """Do not use the session, so that completions are grouped."""
    sum(range(payload["work"]))

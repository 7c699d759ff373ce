"""A host whose workers are looked at from outside."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_taskengine import RetryPolicy, TaskContext, TaskEngine
from tests.support.waiting import wait_until

db = SQLAlchemy()
engine = TaskEngine()

TWICE = RetryPolicy(max_attempts=2, base_backoff=0, jitter=0)


@engine.task("noop")
def noop(payload: Any) -> None:
    """Do nothing."""


@engine.task("fails", retry=TWICE)
def fails(payload: Any) -> None:
    """Fail."""
    raise ValueError("no")


@engine.task("kills", retry=TWICE)
def kills(payload: dict[str, int], context: TaskContext) -> None:
    """Take the process down, as often as the payload says."""
    if context.attempt <= payload["times"]:
        os.kill(os.getpid(), signal.SIGKILL)


@engine.task("waits")
def waits(payload: str) -> None:
    """Wait for a file."""
    wait_until(Path(payload).exists, 60)


@engine.on_dead
def mourn(task_type: str) -> None:
    """Say which process is told."""
    logging.getLogger("app").warning("process %d mourns %s", os.getpid(), task_type)


def create_app() -> Flask:
    """Make the host; its settings come from ``FLASK_…`` variables."""
    app = Flask("host")
    app.config.update(TASKENGINE_LEASE=4, TASKENGINE_HEARTBEAT_INTERVAL=0.5)
    app.config.from_prefixed_env()
    db.init_app(app)
    engine.init_app(app)
    return app

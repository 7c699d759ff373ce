"""A host whose processors do what a supervisor must live with."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import Mapped, mapped_column

from flask_taskengine import TaskEngine
from tests.support.waiting import wait_until

PR_SET_CHILD_SUBREAPER = 36

db = SQLAlchemy()
engine = TaskEngine()


class Effect(db.Model):  # type: ignore[name-defined,misc]
    """What a handler has written in its own transaction."""

    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


def create_app() -> Flask:
    """Make the host; its settings come from ``FLASK_…`` variables."""
    if os.environ.get("SUPERVISED_ADOPTS"):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    app = Flask(__name__)
    app.config.from_mapping(
        TASKENGINE_LEASE=2,
        TASKENGINE_HEARTBEAT_INTERVAL=0.5,
        TASKENGINE_DEFAULT_RETRY={"max_attempts": 3, "base_backoff": 0.05, "max_backoff": 0.1},
    )
    app.config.from_prefixed_env()
    if app.config.get("TASKENGINE_EMBEDDED_WORKER"):
        logging.basicConfig(level=logging.INFO)
    db.init_app(app)
    engine.init_app(app)
    app.add_url_rule("/", view_func=lambda: str(os.getpid()))
    app.add_url_rule("/enqueue", view_func=enqueue_here)
    return app


def enqueue_here() -> str:
    """Enqueue in a request."""
    made = engine.enqueue("effect", {"says": request.args["says"]})
    db.session.commit()
    return str(made.id)


@engine.task("noop")
def noop(payload: Any) -> None:
    """Do nothing."""


@engine.task("effect")
def effect(payload: dict[str, Any]) -> None:
    """Say that it runs, wait for a file, and write a row."""
    say(payload["says"])
    if "until" in payload:
        wait_until(Path(payload["until"]).exists, 60)
    db.session.add(Effect(note=f"{payload.get('note', 'effect')} by {os.getpid()}"))


@engine.task("kill itself")
def kill_itself(payload: dict[str, Any]) -> None:
    """Kill the process that runs it."""
    say(payload["says"])
    os.kill(os.getpid(), signal.SIGKILL)


@engine.task("exit")
def exit_at_once(payload: dict[str, Any]) -> None:
    """End the process that runs it."""
    os._exit(payload["code"])


@engine.task("hold the GIL")
def hold_the_gil(payload: dict[str, Any]) -> None:
    """Let no other thread of the process run for some seconds."""
    say(payload["says"])
    ctypes.PyDLL(None).sleep(payload["seconds"])


@engine.task("hang")
def hang(payload: dict[str, Any]) -> None:
    """Wait in C, where no interrupt arrives."""
    say(payload["says"])
    time.sleep(payload["seconds"])


@engine.task("grow")
def grow(payload: dict[str, Any]) -> None:
    """Take memory and keep it."""
    kept.append(b"x" * payload["bytes"])


kept: list[bytes] = []


@engine.task("leave a zombie")
def leave_a_zombie(payload: dict[str, Any]) -> None:
    """Start a process that outlives its parent and then ends, so that whoever adopts it must bury it."""
    if (middle := os.fork()) == 0:
        if (orphan := os.fork()) == 0:
            wait_until(Path(payload["until"]).exists, 60)
        else:
            say(payload["says"], str(orphan))
        os._exit(0)
    os.waitpid(middle, 0)


def say(path: str, what: str | None = None) -> None:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(f"{what or os.getpid()}\n")

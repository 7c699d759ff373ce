"""An app whose tasks run in processes of their own, and what they do to themselves there."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_taskengine import Reject, Retry, RetryPolicy, Snooze, TaskContext, TaskEngine, current_task
from tests.support.shop import Base, Effect

db = SQLAlchemy(model_class=Base)
engine = TaskEngine()
ONCE = RetryPolicy(max_attempts=1)


def create_app() -> Flask:
    """Make the app for a worker; its settings come from the environment."""
    app = Flask("isolated")
    app.config.from_prefixed_env()
    db.init_app(app)
    engine.init_app(app)
    return app


def _effect(name: str) -> None:
    db.session.add(Effect(name=name))


def _note(path: str) -> None:
    """Tell the test which process this is."""
    Path(path).write_text(str(os.getpid()))


# --- ordinary ends ------------------------------------------------------------------------------------------------------


@dataclass
class Order:
    """A typed payload."""

    number: int
    notes: list[str]


@dataclass
class Receipt:
    """A typed result."""

    total: int
    notes: list[str]


@engine.task("order", isolation="process", store_result=True)
def order(payload: Order) -> Receipt:
    """Return what was given."""
    return Receipt(payload.number * 2, payload.notes)


@engine.task("effect", isolation="process")
def effect(name: str) -> None:
    """Leave an effect, completed in its transaction."""
    _effect(name)


@engine.task("effects", isolation="process")
def effects(names: list[str]) -> None:
    """Commit each effect by itself."""
    for name in names:
        _effect(name)
        db.session.commit()


@engine.task("effect.fails", isolation="process", retry=ONCE)
def effect_fails(name: str) -> None:
    """Leave an effect and fail."""
    _effect(name)
    db.session.flush()
    raise ValueError(f"{name} is not to be")


@engine.task("rejects", isolation="process")
def rejects(payload: Any) -> None:
    """Say that it can never succeed."""
    raise Reject("never")


@engine.task("retries", isolation="process")
def retries(payload: Any) -> None:
    """Ask for a retry in an hour."""
    raise Retry("1h", "not now")


@engine.task("snoozes", isolation="process")
def snoozes(payload: Any) -> None:
    """Ask for another time."""
    raise Snooze("2h")


@engine.task("exits.politely", isolation="process", retry=ONCE)
def exits_politely(payload: Any) -> None:
    """Leave as a script does."""
    sys.exit(7)


@engine.task("context", isolation="process", store_result=True, timeout="1m")
def context(payload: Any, context: TaskContext) -> dict[str, Any]:
    """Tell what a handler is told."""
    assert current_task.task_id == context.task_id
    context.logger.warning("said by the handler")
    context.progress(1, 2, "half")
    assert context.deadline is not None
    return {
        "attempt": context.attempt,
        "max_attempts": context.max_attempts,
        "token": context.token,
        "key": context.idempotency_key,
        "seconds_left": context.deadline - time.monotonic(),
        "cancelled": context.cancelled,
        "lease_lost": context.lease_lost,
    }


@engine.task("process", isolation="process", store_result=True)
def process(payload: Any) -> dict[str, Any]:
    """Tell about the process."""
    return {
        "pid": os.getpid(),
        "main_thread": threading.current_thread() is threading.main_thread(),
        "group": os.getpgrp(),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "child_dies_of_sigterm": _dies_of_sigterm(),
    }


def _dies_of_sigterm() -> bool:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        child.terminate()
        return child.wait() == -signal.SIGTERM


@engine.task("here")
def here(payload: Any) -> None:
    """Run in a thread, as most do."""


# --- attempts that do not end -------------------------------------------------------------------------------------------


@engine.task("waits", isolation="process")
def waits(path: str) -> None:
    """Wait until the file is gone, and leave an effect."""
    _note(path)
    while Path(path).exists():
        time.sleep(0.02)
    _effect(path)


@engine.task("sleeps", isolation="process", timeout=1, retry=ONCE)
def sleeps(path: str) -> None:
    """Sleep in Python's own way; what is to be cleaned up is."""
    try:
        time.sleep(60)
    finally:
        Path(path).write_text("cleaned up")


@engine.task("heeds", isolation="process", store_result=True, retry=ONCE)
def heeds(path: str, context: TaskContext) -> dict[str, bool]:
    """Wait for a cancel or for the loss of the lease, and say which it was."""
    _note(path)
    while not context.cancelled and not context.lease_lost:
        time.sleep(0.02)
    Path(path).write_text("lost" if context.lease_lost else "cancelled")
    _effect(path)
    return {"cancelled": context.cancelled, "lost": context.lease_lost}


@engine.task("hangs", isolation="process", timeout=1, retry=ONCE)
def hangs(path: str) -> None:
    """Hang in C with the interpreter's lock held, where neither a signal nor an exception gets in."""
    _note(path)
    _hang()


@engine.task("hangs.long", isolation="process", retry=ONCE)
def hangs_long(path: str) -> None:
    """Hang in the same way; nothing but the worker can end it."""
    _note(path)
    _hang()


def _hang() -> None:
    lock = ctypes.create_string_buffer(64)
    library = ctypes.PyDLL(None)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


@engine.task("starts.a.program", isolation="process", timeout=1, retry=ONCE)
def starts_a_program(path: str) -> None:
    """Start a program that knows nothing of timeouts, and hang beside it."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    Path(path).write_text(str(child.pid))
    _hang()


@engine.task("runs.a.statement", isolation="process", timeout=1, retry=ONCE)
def runs_a_statement(payload: Any) -> None:
    """Wait in the database."""
    db.session.execute(sa.text("SELECT pg_sleep(60)"))


# --- processes that die -------------------------------------------------------------------------------------------------


@engine.task("dies", isolation="process", retry=ONCE)
def dies(how: str) -> None:
    """End the process in one of the ways in which processes end."""
    _effect("of the dead")
    db.session.flush()
    match how:
        case "exit":
            os._exit(3)
        case "exit 0":
            os._exit(0)
        case "segfault":
            ctypes.string_at(0)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)


@engine.task("dies.after.commit", isolation="process")
def dies_after_commit(name: str) -> None:
    """Die when the effect and the completion are committed, before anybody is told."""
    _effect(name)
    sa.event.listen(db.session(), "after_commit", lambda _: os._exit(9))


@engine.task("dies.once", isolation="process", retry=RetryPolicy(max_attempts=2, base_backoff=0.1, jitter=0))
def dies_once(path: str) -> None:
    """Die in the first attempt, leave an effect in the second."""
    _effect(path)
    if current_task.attempt == 1:
        db.session.flush()
        os._exit(1)


@engine.task("dies.with.zygote", isolation="process", retry=RetryPolicy(max_attempts=2, base_backoff=0.1, jitter=0))
def dies_with_zygote(payload: Any) -> None:
    """Kill the process that has started this one, in the first attempt."""
    if current_task.attempt == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


@engine.task("takes.memory", isolation="process", retry=ONCE, store_result=True)
def takes_memory(mebibytes: int) -> int:
    """Fill memory."""
    return len(b"x" * (mebibytes * 2**20))


@engine.task("takes.memory.in.c", isolation="process", retry=ONCE)
def takes_memory_in_c(mebibytes: int) -> None:
    """Fill memory as a library does that does not ask whether it got any."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    library.memset(library.malloc(ctypes.c_size_t(mebibytes * 2**20)), 1, mebibytes * 2**20)

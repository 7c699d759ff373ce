"""A host with schedules, for real workers; its settings and what it declares come from the environment."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_taskengine import Backoff, Cron, Dynamic, FixedRate, TaskContext, TaskEngine
from tests.support.shop import Base, Effect

db = SQLAlchemy(model_class=Base)


@dataclass
class Bill:
    """A typed payload."""

    customer: int
    token: str = "secret"


def create_app() -> Flask:
    """Make the app; ``SCHEDULED`` names the schedules that it declares."""
    app = Flask("scheduled")
    app.config.from_prefixed_env()
    db.init_app(app)
    engine = TaskEngine(app)
    engine.task("bill")(_bill)
    for name in os.environ.get("SCHEDULED", "second,slow,nightly,apart,later").split(","):
        _DECLARE[name](engine)
    return app


def _bill(payload: Bill) -> None:
    _effect(f"bill of {payload.customer}")


def _effect(name: str) -> None:
    db.session.add(Effect(name=name))


def _second(engine: TaskEngine) -> None:
    @engine.schedule("second", Cron("* * * * * *"), misfire="all", misfire_limit=1000)
    def second(context: TaskContext) -> None:
        """Take a part of a second, so that a kill may strike at any moment."""
        assert context.schedule is not None
        _effect(f"{context.schedule.scheduled_at:%H:%M:%S}")
        db.session.flush()
        time.sleep(0.1)


def _slow(engine: TaskEngine) -> None:
    @engine.schedule("slow", FixedRate("100ms"))
    def slow(context: TaskContext) -> None:
        """Say when it begins and ends, in transactions of their own."""
        for word in ("begins", "ends"):
            with db.engine.begin() as connection:
                connection.execute(sa.insert(Effect).values(name=f"{context.task_id} {word}"))
            time.sleep(0.5 if word == "begins" else 0)


def _nightly(engine: TaskEngine) -> None:
    on_failure = Backoff.geometric("1m", max_attempts=5)
    engine.schedule("nightly", Cron("30 2 * * *", timezone="Europe/Berlin"), on_failure=on_failure)(lambda: None)


def _apart(engine: TaskEngine) -> None:
    @engine.schedule("apart", FixedRate("1h"), isolation="process", on_failure=Backoff.fixed("50ms", 2))
    def apart(context: TaskContext) -> None:
        """Keep a state in a process of its own; fail every first attempt after the first run."""
        schedule = context.schedule
        assert schedule is not None
        schedule.state = (schedule.state or []) + [schedule.runs]
        schedule.run_next("2h")
        if len(schedule.state) == 2 and context.attempt == 1:
            raise ValueError("not yet")
        _effect(f"apart {os.getpid()}")


def _later(engine: TaskEngine) -> None:
    def next_run(context: Any) -> str:
        return "3h"

    @engine.schedule("later", Dynamic("1h", next_run=next_run), isolation="process")
    def later(context: TaskContext) -> None:
        """Use no session, so that the worker completes the task."""
        assert context.schedule is not None
        context.schedule.state = {"pid": os.getpid()}


_DECLARE = {"second": _second, "slow": _slow, "nightly": _nightly, "apart": _apart, "later": _later}

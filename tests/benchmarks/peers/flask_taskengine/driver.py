"""Our driver for a harness that measures task queues side by side: public API only.

The harness puts its module ``common`` on the path; it holds the sub-commands, the clock and the event log.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import common  # type: ignore[import-not-found]  # on the harness's path, not on ours
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_taskengine import TaskEngine

URL = common.DSN.replace("postgresql://", "postgresql+psycopg://", 1)

db = SQLAlchemy()
engine = TaskEngine()


@engine.task("noop")
def noop(payload: dict[str, int]) -> None:
    """Do nothing but say so."""
    common.record(payload["n"])


@engine.task("db")
def write_row(payload: dict[str, int]) -> None:
    """Write one row through the session, in the transaction that completes the task."""
    db.session.execute(sa.text("INSERT INTO effects (n) VALUES (:n)"), payload)
    common.record(payload["n"])


def create_app() -> Flask:
    """Make the host app."""
    app = Flask(__name__)
    app.config.from_prefixed_env()
    app.config["SQLALCHEMY_DATABASE_URI"] = URL
    db.init_app(app)
    engine.init_app(app)
    return app


class Producer:
    """Enqueues through ``db.session``, as an app does."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        create_app().app_context().push()

    def put(self, n: int) -> None:
        engine.enqueue(self._kind, {"n": n})
        db.session.commit()

    def bulk(self, numbers: list[int]) -> None:
        for start in range(0, len(numbers), 1000):
            engine.enqueue_many([{"type": self._kind, "payload": {"n": n}} for n in numbers[start : start + 1000]])
            db.session.commit()


class Driver:
    """What the harness asks of a peer."""

    versions: ClassVar = [common.version(name) for name in ("flask-taskengine", "SQLAlchemy", "psycopg")]
    store = "postgres"
    remaining_sql = "SELECT count(*) FROM taskengine_task WHERE finished_at IS NULL"
    note = "db handlers write through db.session: effect and completion are one transaction"
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "a": {"procs": 1, "options": ["--concurrency", "10"], "note": "defaults, concurrency 10"},
        "b": {"procs": 1, "options": ["--concurrency", "100"], "note": "concurrency 100, 1 process"},
        "b2": {"procs": 2, "options": ["--concurrency", "100"], "note": "concurrency 100, 2 processes"},
    }

    def setup(self) -> None:
        common.wipe_schema()
        with create_app().app_context():
            engine.create_all()

    def open(self, kind: str) -> Producer:
        return Producer(kind)

    def worker(self, profile: str) -> None:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        flask = Path(sys.executable).with_name("flask")
        os.execv(flask, [str(flask), "--app", "driver:create_app", "taskengine", "worker", *self.profiles[profile]["options"]])

    def count(self) -> dict[str, Any]:
        counted: dict[str, Any] = common.count_by("taskengine_task", "status", ["PENDING"], ["SUCCEEDED"])
        return counted

    def fill(self, state: str, n: int) -> None:
        status, ended = {"finished": ("SUCCEEDED", "now()"), "pending": ("PENDING", "NULL")}[state]
        common.sql(
            "INSERT INTO taskengine_task (type, payload, status, finished_at)"
            f" SELECT 'noop', jsonb_build_object('n', -1000000 - g), '{status}', {ended} FROM generate_series(1, {n}) g"
        )


if __name__ == "__main__":
    common.main(Driver())

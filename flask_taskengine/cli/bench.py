"""``flask taskengine bench``: what the engine does on this database and this machine, in tables of its own."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from ..domain.errors import ConfigError
from ..engine.insight import percentiles
from ..runtime.host import Host
from ..runtime.worker import Worker, WorkerOptions
from ..store import migrations
from .command import answer, command, current_host, json_option
from .output import table

_CHUNK = 1000
_PICKUPS = 100
_PAUSE = 0.02
_TOO_LONG = 300.0
_SINGLE = 2000


@command()
@click.option("--tasks", type=click.IntRange(100, 1_000_000), default=5000, show_default=True, help="Tasks of each kind.")
@click.option("--concurrency", type=click.IntRange(1, 1000), help="Tasks in flight [TASKENGINE_CONCURRENCY].")
@json_option
def bench(tasks: int, concurrency: int | None, as_json: bool) -> None:
    """Measure the engine on the app's database.

    Everything happens in tables of its own, which are dropped at the end: the app's tasks and workers are not touched, but they
    share the machine. Figures are of this process and this moment; compare them with each other.

    Example: flask taskengine bench --tasks 20000 --concurrency 50
    """
    host = current_host()
    with _stage(host, concurrency) as stage, _progress(quiet=as_json) as step:
        figures = _measure(stage, tasks, step)
    rows = [(name, f"{value:,.0f}/s" if unit == "per_second" else f"{value:.2f} ms") for (name, unit), value in figures.items()]
    head = f"{stage.dialect}, {tasks} tasks of each kind, concurrency {stage.concurrency}, one process"
    value = {"database": stage.dialect, "tasks": tasks, "concurrency": stage.concurrency}
    value |= {f"{name}, {unit}": round(one, 2) for (name, unit), one in figures.items()}
    answer(as_json, value, f"{head}\n\n{table(('WHAT', 'RATE OR TIME'), rows)}")


@dataclass(slots=True)
class _Stage:
    """An app that is made for this, on the same database."""

    app: Flask
    db: SQLAlchemy
    engine: Any
    effect: sa.Table
    dialect: str
    concurrency: int
    started: dict[int, float] = field(default_factory=dict)
    """By number of the task, on the clock of ``time.monotonic``."""

    @property
    def host(self) -> Host:
        host: Host = self.engine.host(self.app)
        return host

    def left(self) -> int:
        """Count the tasks that have not ended."""
        task = self.host.dialect(self.dialect).tables.task
        with self.host.sql_engine().connect() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(task).where(task.c.finished_at.is_(None))).scalar_one())

    def run(self, tasks: int) -> float:
        """Let a worker run what waits; return how many a second it has finished, the last commit included."""
        self.started.clear()
        with self.worker():
            end = time.monotonic() + _TOO_LONG
            while self.left():
                if time.monotonic() > end:
                    raise click.ClickException(f"the tasks did not end within {_TOO_LONG:.0f} s: give fewer by --tasks")
                time.sleep(0.01)
            return tasks / (time.monotonic() - min(self.started.values()))

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Let a worker run in this process."""
        worker = Worker(self.host, WorkerOptions(concurrency=self.concurrency))
        worker.beat_itself()
        worker.start()
        try:
            yield
        finally:
            worker.stop(0)


def _measure(stage: _Stage, tasks: int, step: Callable[[str], None]) -> dict[tuple[str, str], float]:
    figures: dict[tuple[str, str], float] = {}
    with stage.app.app_context():
        step("one enqueue, one commit")
        single = min(tasks, _SINGLE)
        began = time.perf_counter()
        for number in range(single):
            stage.engine.enqueue("noop", number)
            stage.db.session.commit()
        figures["enqueue, each with its own commit", "per_second"] = single / (time.perf_counter() - began)
        step("enqueue_many")
        began = time.perf_counter()
        for first in range(0, tasks, _CHUNK):
            stage.engine.enqueue_many({"type": "noop", "payload": number} for number in range(first, min(tasks, first + _CHUNK)))
            stage.db.session.commit()
        figures["enqueue_many, 1,000 a call", "per_second"] = tasks / (time.perf_counter() - began)
    step("tasks that do nothing")
    figures["tasks that do nothing", "per_second"] = stage.run(single + tasks)
    step("tasks that write")
    with stage.app.app_context():
        stage.engine.enqueue_many({"type": "write", "payload": number} for number in range(tasks))
        stage.db.session.commit()
    figures["tasks that write one row, in one transaction with their end", "per_second"] = stage.run(tasks)
    step("latency")
    figures |= {(f"start of a task after the commit, {name}", "ms"): value * 1000 for name, value in _latency(stage).items()}
    return figures


def _latency(stage: _Stage) -> dict[str, float]:
    """Enqueue one by one while a worker sleeps, and say how long after the commit each began."""
    committed: dict[int, float] = {}
    stage.started.clear()
    with stage.worker(), stage.app.app_context():
        for number in range(_PICKUPS + 1):
            stage.engine.enqueue("noop", number)
            stage.db.session.commit()
            committed[number] = time.monotonic()
            end = time.monotonic() + _TOO_LONG
            while number not in stage.started and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(_PAUSE)
    # Not the first: with it the worker connects.
    found = percentiles(max(0.0, stage.started[number] - committed[number]) for number in range(1, _PICKUPS + 1))
    return {"p50": found.p50 or 0.0, "p95": found.p95 or 0.0, "p99": found.p99 or 0.0}


@contextmanager
def _stage(host: Host, concurrency: int | None) -> Iterator[_Stage]:
    """Make the app and its tables, and drop them whatever happens."""
    engine = host.sql_engine()
    prefix = f"te_bench_{secrets.token_hex(4)}_"
    app = Flask("taskengine_bench")
    app.config.from_mapping(
        SQLALCHEMY_DATABASE_URI=engine.url.render_as_string(hide_password=False),
        SQLALCHEMY_ENGINE_OPTIONS=dict(host.app.config.get("SQLALCHEMY_ENGINE_OPTIONS", {})),
        TASKENGINE_TABLE_PREFIX=prefix,
        TASKENGINE_SCHEMA=host.settings.schema,
        TASKENGINE_HEALTH_ENABLED=False,
        TASKENGINE_WAKEUP=host.settings.wakeup,
        TASKENGINE_LISTEN_URL=host.settings.listen_url,
    )
    db = SQLAlchemy(app)
    task_engine = type(host.sender)(app, db)
    effect = sa.Table(f"{prefix}effect", sa.MetaData(schema=host.settings.schema), sa.Column("n", sa.Integer))
    stage = _Stage(app, db, task_engine, effect, engine.dialect.name, concurrency or host.settings.concurrency)
    lock = threading.Lock()

    @task_engine.task("noop")  # type: ignore[untyped-decorator]
    def noop(payload: int) -> None:
        with lock:
            stage.started[payload] = time.monotonic()

    @task_engine.task("write")  # type: ignore[untyped-decorator]
    def write(payload: int) -> None:
        db.session.execute(sa.insert(effect).values(n=payload))
        with lock:
            stage.started[payload] = time.monotonic()

    names = stage.host.names
    try:
        with app.app_context():
            migrations.migrate(db.engine, names)
            effect.create(db.engine)
        yield stage
    except sa.exc.ProgrammingError as error:
        raise ConfigError(f"tables for the measurement can not be made ({error.orig}): the role needs CREATE on the schema") from error
    finally:
        with app.app_context():
            db.session.remove()
            effect.drop(db.engine, checkfirst=True)
            migrations.downgrade(db.engine, names)
            sa.Table(names.version_table, sa.MetaData(schema=names.schema)).drop(db.engine, checkfirst=True)
            db.engine.dispose()


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show what is measured, where somebody looks."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=5, label="enqueue", file=sys.stderr, item_show_func=lambda text: text or "") as bar:

        def step(what: str) -> None:
            bar.update(1, what)

        yield step

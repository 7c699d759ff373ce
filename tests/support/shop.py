"""A host with business data beside its tasks, and what a second connection sees of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from blinker import NamedSignal
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from flask_taskengine import Task, TaskEngine, signals
from flask_taskengine.runtime.host import Host
from flask_taskengine.runtime.worker import Worker, WorkerOptions
from flask_taskengine.store import tasks
from flask_taskengine.store.dialects.base import Dialect

from .hosts import MakeApp
from .waiting import wait_until


class Base(DeclarativeBase):
    """The host's own tables."""


class Effect(Base):
    """What a request or a handler leaves behind."""

    __tablename__ = "effect"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(80), unique=True)


@dataclass(slots=True)
class Shop:
    """A host, and an engine with connections of its own that shows what is committed."""

    app: Flask
    db: SQLAlchemy
    engine: TaskEngine
    outside: sa.Engine
    workers: list[Worker] = field(default_factory=list)
    """Those made here; stopped when the shop is closed."""

    @property
    def host(self) -> Host:
        return self.engine.host(self.app)

    @property
    def dialect(self) -> Dialect:
        return self.host.dialect(self.outside.dialect.name)

    @property
    def is_postgresql(self) -> bool:
        return self.outside.dialect.name == "postgresql"

    def tasks(self) -> list[Task]:
        """Read the committed tasks, oldest first."""
        with self.outside.connect() as connection:
            return tasks.newest(connection, self.dialect.tables, limit=100_000)[::-1]

    def task(self, task_id: int) -> Task:
        """Read one committed task."""
        with self.outside.connect() as connection:
            found = tasks.get(connection, self.dialect.tables, task_id)
        assert found is not None, f"no task {task_id} is committed"
        return found

    def attempts(self, task_id: int) -> list[Any]:
        """Read the failed attempts of a task, oldest first."""
        with self.outside.connect() as connection:
            return tasks.attempts_of(connection, self.dialect.tables, task_id)

    def effects(self) -> list[str]:
        """Read the names of the committed effects, in the order of their ids."""
        with self.outside.connect() as connection:
            return list(connection.execute(sa.select(Effect.name).order_by(Effect.id)).scalars())

    def sql(self, statement: str, **parameters: Any) -> Any:
        """Run one statement from outside, commit it, and return its rows where it has some, else their number."""
        with self.outside.begin() as connection:
            result = connection.execute(sa.text(statement), parameters)
            return result.all() if result.returns_rows else result.rowcount

    def seconds_until_due(self, task_id: int) -> float:
        """Return how long a task has still to wait, by the database's clock."""
        task = self.dialect.tables.task
        with self.outside.connect() as connection:
            now, due = connection.execute(sa.select(_now(), task.c.available_at).where(task.c.id == task_id)).one()
        return float((due - now).total_seconds())

    def enqueue(self, task_type: str, payload: Any = None, **options: Any) -> int:
        """Enqueue one task, commit, and return its id."""
        with self.app.app_context():
            made = self.engine.enqueue(task_type, payload, **options)
            self.db.session.commit()
        return made.id

    def enqueue_many(self, *task_types: str) -> list[int]:
        """Enqueue tasks without a payload in one transaction, and return their ids."""
        with self.app.app_context():
            made = self.engine.enqueue_many({"type": task_type} for task_type in task_types)
            self.db.session.commit()
        return [one.id for one in made]

    def wait_for(self, task_id: int, *statuses: str, timeout: float = 10) -> Task:
        """Wait until a task has one of these statuses, by default until it has ended."""
        wanted = statuses or ("SUCCEEDED", "FAILED", "DEAD", "CANCELLED")
        wait_until(lambda: self.task(task_id).status in wanted, timeout, lambda: f"{wanted} of {self.task(task_id)}")
        return self.task(task_id)

    def wait_for_all(self, ids: list[int], status: str = "SUCCEEDED", timeout: float = 15) -> None:
        """Wait until all tasks have this status."""
        table = self.dialect.tables.task
        statement = sa.select(sa.func.count()).where(table.c.id >= min(ids), table.c.id <= max(ids), table.c.status == status)

        def count() -> int:
            with self.outside.connect() as connection:
                return int(connection.execute(statement).scalar_one())

        wait_until(lambda: count() >= len(ids), timeout, lambda: f"{len(ids)} tasks to be {status}, {count()} are")

    def worker(self, concurrency: int = 4, **options: Any) -> Worker:
        """Make a worker in this process; nobody beats for it, which nobody notices within a lease."""
        factory = options.pop("executor_factory", None)
        worker = Worker(self.host, WorkerOptions(concurrency=concurrency, **options), joined=lambda _: None, executor_factory=factory)
        self.workers.append(worker)
        return worker


def _now() -> sa.ColumnElement[Any]:
    from flask_taskengine.store.clock import db_now

    return db_now()


@contextmanager
def open_shop(make_app: MakeApp, url: str, **config: Any) -> Iterator[Shop]:
    """Make a host with the table of effects on a database that has the engine's schema."""
    # Whatever the database's default is: a test looks again and again, and wants to see what is committed.
    options = {"isolation_level": "READ COMMITTED"} if url.startswith("postgresql") else {}
    outside = sa.create_engine(url, poolclass=sa.NullPool, **options)
    Base.metadata.create_all(outside)
    app, db, engine = make_app(url, **config)
    shop = Shop(app, db, engine, outside)
    yield shop
    for worker in shop.workers:
        worker.stop(0)


@contextmanager
def statements_of(engine: sa.Engine) -> Iterator[list[str]]:
    """Collect the statements that an engine's connections execute, but not BEGIN and COMMIT."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


@dataclass(slots=True)
class Events:
    """What the engine has announced, in order: the name of the signal and its fields."""

    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def names(self, task_id: int | None = None) -> list[str]:
        """Return the names of the signals, of one task or of all."""
        return [name for name, fields in self.seen if task_id is None or fields.get("task_id") == task_id]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the fields of every signal of one name."""
        return [fields for seen, fields in self.seen if seen == name]


@contextmanager
def events_of(sender: TaskEngine) -> Iterator[Events]:
    """Collect everything that one engine announces."""
    events = Events()

    def receiver_of(name: str) -> Any:
        return lambda _, **fields: events.seen.append((name, fields))

    receivers: list[tuple[NamedSignal, Any]] = [(signal, receiver_of(name)) for name, signal in signals.namespace.items()]
    for signal, receiver in receivers:
        signal.connect(receiver, sender=sender)
    try:
        yield events
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver, sender=sender)

"""What the runtime knows of the app it works for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from ..engine.declare import Declared
from ..engine.registry import Registry
from ..settings import Settings
from ..store.dialects import dialect_for
from ..store.dialects.base import Dialect
from ..store.tables import Names


@dataclass(slots=True, eq=False)
class Host:
    """One app with its database, settings and processors; the same for the verbs, the CLI and the worker."""

    app: Flask
    db: SQLAlchemy | None
    settings: Settings
    registry: Registry
    sender: Any
    """The ``TaskEngine``, which the signals name as their sender."""
    wakers: set[Callable[[], None]] = field(default_factory=set)
    """Called after a commit that has enqueued: workers in this process."""
    embedded: Any = None
    """The ``Embedded`` of a host that has switched it on."""
    schedules: Mapping[str, Declared] = field(default_factory=dict)
    """Those of the code, by name."""
    _dialects: dict[str, Dialect] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def names(self) -> Names:
        return Names(self.settings.table_prefix, self.settings.task_table, self.settings.schema)

    def wake(self) -> None:
        """Wake the workers in this process: something that was committed may be due."""
        for wake in tuple(self.wakers):
            wake()

    def database(self) -> SQLAlchemy:
        """Return the app's Flask-SQLAlchemy extension, which may be initialised after the engine."""
        if self.db is not None:
            return self.db
        found: SQLAlchemy | None = self.app.extensions.get("sqlalchemy")
        if found is None:
            raise RuntimeError("Flask-SQLAlchemy is not set up for this app: call db.init_app(app), or give TaskEngine(app, db)")
        return found

    def sql_engine(self) -> sa.Engine:
        """Return the host's own engine of the default bind; does not connect."""
        with self.app.app_context():
            engine = self.database().engine
        self.dialect(engine.dialect.name).prepare(engine, tune=self.settings.sqlite_pragmas)
        return engine

    def dialect(self, database: str) -> Dialect:
        """Return the statements for a database, given SQLAlchemy's name for it."""
        dialect = self._dialects.get(database)
        if dialect is None:
            with self._lock:
                dialect = self._dialects.setdefault(database, dialect_for(database, self.names))
        return dialect

"""What the runtime knows of the app it works for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import sqlalchemy as sa
from blinker import NamedSignal
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from ..domain.task import Enqueued, NewTask
from ..engine.declare import Declared
from ..engine.registry import Registry
from ..settings import Settings
from ..signals import emit
from ..store.dialects import dialect_for
from ..store.dialects.base import Dialect
from ..store.tables import Names
from .reactions import Reactions

Write = Callable[[Sequence[NewTask]], list[Enqueued]]


class Tracing(Protocol):
    """Follows tasks from their enqueue through their runs."""

    @property
    def follows(self) -> Collection[str]:
        """The names of the signals to which it adds something."""

    def enqueue(self, news: Sequence[NewTask], write: Write) -> list[Enqueued]:
        """Write tasks by ``write``, each with the trace context that its run is to continue."""

    def announce(self, name: str, fields: Mapping[str, Any], tell: Callable[[], None]) -> None:
        """Call ``tell``, which announces an event, inside the trace that the event belongs to. Raises nothing of its own."""

    def unseen(self) -> AbstractContextManager[None]:
        """Make no spans inside, of drivers either."""

    def carry(self) -> dict[str, str]:
        """Return the current trace context, for another process."""

    def resume(self, carried: Mapping[str, str]) -> None:
        """Continue in this thread what another process has carried over."""

    def flush(self, timeout: float) -> None:
        """Hand over, within so many seconds, what is held back until there is more of it."""


@dataclass(slots=True, eq=False, weakref_slot=True)
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
    reactions: Reactions = field(default_factory=Reactions)
    """The app's own functions that follow events."""
    tracing: Tracing | None = None
    count: Callable[[str, Mapping[str, Any]], None] | None = None
    """Counts events, given their names and fields. Raises nothing."""
    tell_elsewhere: Callable[[str, Mapping[str, Any]], None] | None = None
    """In a process that does not live long enough for receivers: takes the names and fields of events in their stead."""
    schedules: Mapping[str, Declared] = field(default_factory=dict)
    """Those of the code, by name."""
    _dialects: dict[str, Dialect] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def announce(self, signal: NamedSignal, **fields: Any) -> None:
        """Tell every receiver and reaction; raises nothing of theirs."""
        if self.tell_elsewhere is not None:
            self.tell_elsewhere(signal.name, fields)
            return
        if self.tracing is None or signal.name not in self.tracing.follows:
            emit(signal, self.sender, **fields)
        else:
            self.tracing.announce(signal.name, fields, partial(emit, signal, self.sender, **fields))
        if self.count is not None:
            self.count(signal.name, fields)
        self.reactions.take(self, signal.name, fields)

    def hears(self, signal: NamedSignal) -> bool:
        """Say whether anybody would be told."""
        return bool(signal.receivers) or self.count is not None or self.reactions.follow(signal.name)

    def unseen(self) -> AbstractContextManager[None]:
        """Keep the engine's own statements out of the traces that an instrumented driver makes."""
        return nullcontext() if self.tracing is None else self.tracing.unseen()

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

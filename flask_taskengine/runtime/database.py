"""The worker's own connections, beside the pool that handlers use."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from ..store.dialects.base import Dialect
from .host import Host
from .watchdog import Watchdog

STATEMENT_DEADLINE = 15.0
"""Seconds after which an internal statement or transaction is given up and its connection thrown away."""

_logger = logging.getLogger("flask_taskengine")


def own_engine(host: Host) -> sa.Engine:
    """Return an engine that connects as the host's does, with a pool of its own: handlers can not starve the heartbeat.

    Raises:
        ConfigError: no other process can see this database.
    """
    theirs = host.sql_engine()
    dialect = host.dialect(theirs.dialect.name)
    dialect.require_shared(theirs.url)
    if not event.contains(theirs, "do_connect", _limit_connect):
        event.listen(theirs, "do_connect", _limit_connect)
    source = theirs.pool.recreate()

    def connect() -> Any:
        token = _limits.set(dialect.connect_limits)
        try:
            pooled = source.connect()
        finally:
            _limits.reset(token)
        # Out of the pool at once: every loop keeps its connection, however few the host allows for itself.
        driver = pooled.dbapi_connection
        pooled.detach()
        return driver

    return sa.Engine(sa.NullPool(connect, dialect=theirs.dialect), theirs.dialect, theirs.url)


def keep_connections(host: Host, tasks: int) -> None:
    """Let the app's pool keep a connection for each task that runs at once, of those that it may open anyway.

    What a pool has opened beyond its ``pool_size`` it closes as soon as it is given back, and to connect anew for each task costs the
    database more than most handlers do. For a process that runs tasks and nothing else, and has no connection yet.
    """
    engine = host.sql_engine()
    pool = engine.pool
    if not isinstance(pool, sa.pool.QueuePool):
        return
    # It has no other way to be changed.
    overflow = pool._max_overflow  # noqa: SLF001
    more = tasks - pool.size() if overflow < 0 else min(tasks - pool.size(), overflow)
    if more > 0:
        pool._pool.maxsize += more  # noqa: SLF001
        pool._max_overflow = overflow if overflow < 0 else overflow - more  # noqa: SLF001
        engine.dispose(close=False)


def _limit_connect(dialect: Any, record: Any, arguments: Any, named: dict[str, Any]) -> None:
    for name, limit in _limits.get().items():
        named.setdefault(name, limit)


_NO_LIMITS: Mapping[str, Any] = MappingProxyType({})
_limits: ContextVar[Mapping[str, Any]] = ContextVar("flask_taskengine_connect_limits", default=_NO_LIMITS)
"""Set while a connection of ours is made, and empty for the host's own."""


class Database:
    """Where the worker's loops get their connections from."""

    def __init__(self, host: Host, watchdog: Watchdog) -> None:
        self.host = host
        self.watchdog = watchdog
        self.engine = own_engine(host)
        self.dialect: Dialect = host.dialect(self.engine.dialect.name)
        self.tables = self.dialect.tables

    def line(self) -> Line:
        """Return a connection of its own for one loop; it connects at the first use."""
        return Line(self)

    def close(self) -> None:
        self.engine.dispose()


class Line:
    """One connection kept open by one loop, replaced after any error. Not for use by two threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: sa.Connection | None = None
        self._begins_each = False

    @contextmanager
    def statement(self, deadline: float = STATEMENT_DEADLINE) -> Iterator[sa.Connection]:
        """Give the connection for single statements that each commit for themselves."""
        with self._guarded(deadline) as connection:
            if self._begins_each:
                connection.exec_driver_sql(self._database.dialect.begin)
            yield connection
            connection.commit()

    @contextmanager
    def transaction(self, deadline: float = STATEMENT_DEADLINE) -> Iterator[sa.Connection]:
        """Give the connection inside a transaction that commits at the end of the block."""
        with self._guarded(deadline) as connection:
            connection.exec_driver_sql(self._database.dialect.begin)
            yield connection
            connection.commit()

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.invalidate()
                connection.close()
            except sa.exc.SQLAlchemyError:
                _logger.debug("closing a broken connection failed", exc_info=True)

    @contextmanager
    def _guarded(self, deadline: float) -> Iterator[sa.Connection]:
        with self._database.host.unseen(), self._bounded(deadline) as connection:
            yield connection

    @contextmanager
    def _bounded(self, deadline: float) -> Iterator[sa.Connection]:
        fresh = self._connection is None
        # Autocommit, so that a single statement is a single round trip; transactions begin by their own words.
        connection = self._connection or self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection = connection
        driver = connection.connection.driver_connection
        with self._database.watchdog.limit(deadline, lambda: self._give_up(driver)):
            try:
                if fresh:
                    self._begins_each = self._database.dialect.isolates_single_statements(connection)
                yield connection
            except BaseException:
                self.close()
                raise

    def _give_up(self, driver: Any) -> None:
        _logger.warning("an internal statement took longer than %g s and is given up", STATEMENT_DEADLINE)
        self._database.dialect.sever(driver)

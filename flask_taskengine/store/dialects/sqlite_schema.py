"""How SQLite writes the schema: one writer at a time is all that it allows, and its DDL is transactional once BEGIN was said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from ...domain.errors import ConfigError
from ..tables import Names
from .schema import SchemaDialect

_LOCK_WAIT = 60_000
"""Milliseconds; twenty processes that migrate at once wait for each other here, whatever the host's own time-out is."""


class SQLiteSchema(SchemaDialect):
    """SQLite 3.35 and later, in a file."""

    @contextmanager
    def transaction(self, engine: sa.Engine, names: Names) -> Iterator[sa.Connection]:
        with engine.begin() as connection:
            if _in_transaction(connection):
                # The host's engine begins by itself, and deferred: that could no longer become a writer once it has read.
                connection.exec_driver_sql("ROLLBACK")
            self.lock(connection, names)
            yield connection

    def lock(self, connection: sa.Connection, names: Names) -> None:
        """Begin as a writer, unless the caller's transaction is open already: its first write then waits by the host's time-out."""
        if _in_transaction(connection):
            return
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {_LOCK_WAIT}")
        try:
            # The driver alone would begin at the first INSERT, and write each CREATE TABLE for itself.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def ensure_schema(self, connection: sa.Connection, names: Names) -> None:
        attached = {row[1] for row in connection.exec_driver_sql("PRAGMA database_list")}
        if names.schema is not None and names.schema not in attached:
            remedy = "leave TASKENGINE_SCHEMA unset, or ATTACH a database under that name to every connection"
            raise ConfigError(f"SQLite has no schema {names.schema!r}: {remedy}")


def _in_transaction(connection: sa.Connection) -> bool:
    return bool(getattr(connection.connection.driver_connection, "in_transaction", False))

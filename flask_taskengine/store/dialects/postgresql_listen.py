"""LISTEN on PostgreSQL."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

_TEST_WAIT = 2.0


class PostgreSQLListener:
    """A connection that does nothing but LISTEN: other statements on it could swallow notifications.

    Raises:
        ConnectionError: what is notified does not arrive, as behind a pooler that pools transactions.
    """

    mode: ClassVar[str] = "LISTEN"

    def __init__(self, engine: sa.Engine, url: str | None, channel: str) -> None:
        self._channel = channel
        self._connection = _connect(url) if url else _detached(engine)
        try:
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self._test(engine)
        except BaseException:
            self._connection.close()
            raise

    def wait(self, timeout: float) -> bool:
        # A payload is another listener's test.
        return any(not notify.payload for notify in self._connection.notifies(timeout=timeout, stop_after=1))

    def close(self) -> None:
        # The socket first: closing the connection would wait for the thread that listens.
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _test(self, engine: sa.Engine) -> None:
        """Send a notification round: a pooler takes LISTEN without a complaint and never delivers."""
        token = f"test {os.getpid()} {time.monotonic_ns()}"
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (self._channel, token))
            connection.commit()
        end = time.monotonic() + _TEST_WAIT
        while (left := end - time.monotonic()) > 0:
            if any(notify.payload == token for notify in self._connection.notifies(timeout=left, stop_after=1)):
                return
        raise ConnectionError("notifications do not arrive: is there a pooler in between? Set TASKENGINE_LISTEN_URL to the database itself")


def _detached(engine: sa.Engine) -> psycopg.Connection[Any]:
    """Connect as the host does, with its events, and take the connection out of the pool."""
    pooled = engine.raw_connection()
    connection: psycopg.Connection[Any] = pooled.driver_connection  # type: ignore[assignment]
    pooled.detach()
    connection.autocommit = True
    return connection


def _connect(url: str) -> psycopg.Connection[Any]:
    """Connect by an address as SQLAlchemy reads it: libpq takes the plus that stands for a space as it is."""
    arguments, named = PGDialect_psycopg().create_connect_args(sa.make_url(url))
    connection: psycopg.Connection[Any] = psycopg.connect(*arguments, **named | {"autocommit": True})
    return connection

"""SQLite, the embedded default: one writer at a time, so every claim is one statement, the first of its transaction."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from ...domain.errors import ConfigError
from ...domain.task import Claimed, NewTask, Task
from ..lowwater import LowWater
from ..tables import Names
from ..types import UtcDateTime, read_json
from .base import MOST_STEPS, Dialect, KeyHeld, Listener
from .sqlite_insight import AHEAD

_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
_INSERT_CHUNK = 500
_MANY_TYPES = 50
"""With more, those without a waiting task are left out of the claim first."""
_MOST_ARMS = 400
"""SQLite takes at most 500 selects in a compound."""


class SQLite(Dialect):
    """SQLite 3.35 and later, in a file."""

    name: ClassVar[str] = "sqlite"
    begin: ClassVar[str] = "BEGIN IMMEDIATE"

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self._dialect = self.sqlalchemy_dialect()
        self._columns = "(type, payload, priority, idempotency_key, max_attempts, available_at, trace_context)"
        self._values = f"(?, ?, ?, ?, ?, coalesce(?, strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', ?)), {_NOW}), ?)"
        self._complete = (
            f"UPDATE {self.task} SET status = 'SUCCEEDED', finished_at = {_NOW}, updated_at = {_NOW}, result = ?"
            " WHERE id = ? AND claims = ? AND status = 'RUNNING' AND cancel_requested_at IS NULL"
        )
        self._skip_existing = "ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"

    @staticmethod
    def sqlalchemy_dialect() -> sa.Dialect:
        return SQLiteDialect_pysqlite()

    # --- enqueue ------------------------------------------------------------------------------------------------------

    def insert(self, connection: sa.Connection, new: NewTask) -> int:
        ((task_id, _),) = self._insert(connection, [new])
        assert task_id is not None
        return task_id

    def insert_many(self, connection: sa.Connection, news: Sequence[NewTask]) -> list[int | None]:
        ids: list[int | None] = [None] * len(news)
        for keyed in (False, True):
            places = [i for i, new in enumerate(news) if (new.idempotency_key is not None) is keyed]
            for start in range(0, len(places), _INSERT_CHUNK):
                chunk = places[start : start + _INSERT_CHUNK]
                rows = self._insert(connection, [news[i] for i in chunk])
                if keyed:
                    created = {key: task_id for task_id, key in rows}
                    rows = [(created.pop(news[i].idempotency_key, None), None) for i in chunk]
                for i, (task_id, _) in zip(chunk, rows, strict=True):
                    ids[i] = task_id
        return ids

    def _insert(self, connection: sa.Connection, news: list[NewTask]) -> list[tuple[int | None, str | None]]:
        values = ", ".join([self._values] * len(news))
        statement = f"INSERT INTO {self.task} {self._columns} VALUES {values} {self._skip_existing} RETURNING id, idempotency_key"
        parameters = tuple(value for new in news for value in self._row(new))
        return sorted((row[0], row[1]) for row in connection.exec_driver_sql(statement, parameters))

    @contextmanager
    def guard_keys(self, connection: sa.Connection) -> Iterator[None]:
        # The wait for the one writer is bounded by the connection's busy time-out, and only the first write waits.
        try:
            yield
        except sa.exc.OperationalError as error:
            if "locked" not in str(error.orig):
                raise
            raise KeyHeld("another transaction is writing to the database: try again once that has ended") from error

    def _row(self, new: NewTask) -> tuple[Any, ...]:
        available_at = _TIME.process_bind_param(new.available_at, self._dialect)
        return (new.type, new.payload, new.priority, new.idempotency_key, new.max_attempts, available_at, new.delay, new.trace_context)

    def insert_absent(self, connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> bool:
        statement = insert(table).values(**values).on_conflict_do_nothing().returning(*table.primary_key)
        return connection.execute(statement).first() is not None

    # --- claim and complete -------------------------------------------------------------------------------------------

    def claim(
        self, connection: sa.Connection, node: str, rooms: Mapping[str, int], most: int, low_water: LowWater | None = None
    ) -> list[Claimed]:
        if len(rooms) > _MANY_TYPES:
            waiting = self._waiting_types(connection) & rooms.keys()
            rooms = {task_type: rooms[task_type] for task_type in random.sample(sorted(waiting), min(len(waiting), _MOST_ARMS))}
        if not rooms:
            return []
        arms, parameters = self._arms(rooms, most)
        statement = (
            f"UPDATE {self.task} SET status = 'RUNNING', attempts = attempts + 1, claims = claims + 1, claimed_by = ?,"
            f" claimed_at = {_NOW}, updated_at = {_NOW} WHERE id IN (SELECT id FROM ({arms})"
            f" WHERE EXISTS (SELECT 1 FROM {self.node} WHERE id = ? AND expired_at IS NULL)"
            " ORDER BY priority DESC, available_at, id LIMIT ?)"
            " RETURNING id, type, payload, priority, attempts, max_attempts, available_at, created_at, claimed_at, claims,"
            " idempotency_key, trace_context"
        )
        rows = connection.exec_driver_sql(statement, (node, *parameters, node, most)).all()
        claimed = [self._claimed(row) for row in rows]
        claimed.sort(key=lambda task: (-task.priority, task.available_at, task.id))
        return claimed

    def _arms(self, rooms: Mapping[str, int], most: int) -> tuple[str, list[Any]]:
        """Return one select per type: a type's own slice of the index, so that no type's backlog is sorted or walked."""
        arm = (
            f"SELECT * FROM (SELECT id, priority, available_at FROM {self.task}"
            " WHERE status = 'PENDING' AND finished_at IS NULL AND type = ?"
            f" AND available_at <= {_NOW}"
            f" AND NOT EXISTS (SELECT 1 FROM {self.type} p WHERE p.type IN (?, '*') AND p.paused_at IS NOT NULL)"
            " ORDER BY priority DESC, available_at, id LIMIT ?)"
        )
        parameters = [value for task_type, room in rooms.items() for value in (task_type, task_type, min(room, most))]
        return " UNION ALL ".join([arm] * len(rooms)), parameters

    def _waiting_types(self, connection: sa.Connection) -> set[str]:
        """Return the types with PENDING tasks, by one probe of the index per type."""
        first = f"(SELECT min(type) FROM {self.task} WHERE status = 'PENDING' AND finished_at IS NULL"
        statement = (
            f"WITH RECURSIVE known (type) AS (SELECT {first}) UNION ALL SELECT {first} AND type > known.type) FROM known"
            " WHERE known.type IS NOT NULL) SELECT type FROM known WHERE type IS NOT NULL"
        )
        return set(connection.exec_driver_sql(statement).scalars())

    def _claimed(self, row: Sequence[Any]) -> Claimed:
        payload = read_json(row[2])
        available_at, created_at, claimed_at = (self._time(row[i]) for i in (6, 7, 8))
        task_id, task_type, _, priority, attempts, max_attempts, *_, claims, key, trace = row
        return Claimed(
            task_id, task_type, payload, priority, attempts, max_attempts, available_at, created_at, claimed_at, claims, key, trace
        )

    def _time(self, text: str) -> datetime:
        moment = _TIME.process_result_value(text, self._dialect)
        assert moment is not None
        return moment

    def complete(self, connection: sa.Connection, task_id: int, claims: int, result: str | None) -> bool:
        return connection.exec_driver_sql(self._complete, (result, task_id, claims)).rowcount == 1

    def complete_many(self, connection: sa.Connection, done: Sequence[tuple[int, int, str | None]]) -> set[int]:
        return {task_id for task_id, claims, result in done if self.complete(connection, task_id, claims, result)}

    def prepare(self, engine: sa.Engine, *, tune: bool) -> None:
        if tune and not sa.event.contains(engine, "connect", _set_pragmas):
            sa.event.listen(engine, "connect", _set_pragmas)
        if not sa.event.contains(engine, "savepoint", _begin_before_savepoint):
            sa.event.listen(engine, "savepoint", _begin_before_savepoint)

    def require_shared(self, url: sa.URL) -> None:
        if url.database in (None, "", ":memory:") or "mode=memory" in str(url):
            raise ConfigError("the database is in memory, where a worker can not see it: use a file, such as sqlite:///app.db")

    def doubts(self, connection: sa.Connection) -> Sequence[str]:
        mode, wait = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("journal_mode", "busy_timeout"))
        doubts = []
        if mode != "wal":
            doubts.append(f"the SQLite file is in journal mode {mode}, where readers and the writer block each other: {_REMEDY}")
        if wait < _SHORT_WAIT:
            doubts.append(f"a writer waits only {wait} ms for another before it fails with 'database is locked': {_REMEDY}")
        return doubts

    def commits_by_itself(self, connection: sa.Connection) -> bool:
        driver: Any = connection.connection.driver_connection
        # Without the driver's own begin, a host may still begin by an event, as SQLAlchemy's documentation advises.
        return driver.isolation_level is None and not driver.in_transaction

    def listener(self, engine: sa.Engine, url: str | None) -> Listener:
        return SQLiteListener(engine)

    def cancel_statement(self, driver: Any) -> None:
        with suppress(sqlite3.ProgrammingError):  # closed in between
            driver.interrupt()

    def wait_shortly(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("PRAGMA busy_timeout = 200")

    def sever(self, driver: Any) -> None:
        self.cancel_statement(driver)

    # --- looking ahead ------------------------------------------------------------------------------------------------

    def seconds_to_due(self, connection: sa.Connection, types: Sequence[str], low_water: LowWater | None = None) -> dict[str, float]:
        marks = ", ".join("?" * len(types))
        unpaused = f"NOT EXISTS (SELECT 1 FROM {self.type} p WHERE p.type IN ({self.task}.type, '*') AND p.paused_at IS NOT NULL)"
        return self._due(connection, f"AND type IN ({marks}) AND {unpaused}", tuple(types))

    def pending_types(self, connection: sa.Connection) -> dict[str, float]:
        return self._due(connection, "", ())

    def _due(self, connection: sa.Connection, condition: str, parameters: tuple[str, ...]) -> dict[str, float]:
        statement = (
            "SELECT type, (julianday(min(available_at)) - julianday('now')) * 86400.0"
            f" FROM {self.task} WHERE status = 'PENDING' AND finished_at IS NULL {condition} GROUP BY type"
        )
        return {task_type: wait for task_type, wait in connection.exec_driver_sql(statement, parameters)}

    def payload_has(self, path: Sequence[str], value: Any) -> sa.ColumnElement[bool]:
        text = sa.type_coerce(self.tables.task.c.payload, sa.Text)
        where = "$" + "".join(f'."{name}"' for name in path)
        kind = {bool: str(value).lower(), type(None): "null", str: "text"}.get(type(value), "number")
        stored = sa.func.coalesce(sa.func.nullif(sa.func.json_type(text, where), "integer"), "number")
        same_kind = sa.func.replace(stored, "real", "number") == kind
        has = sa.and_(sa.func.json_type(text, where).is_not(None), same_kind)
        return has if kind in ("true", "false", "null") else sa.and_(has, sa.func.json_extract(text, where) == value)

    def ahead(self, connection: sa.Connection, task: Task, types: Sequence[str], most: int) -> int:
        chosen = types[:_MOST_ARMS]
        if not chosen:
            return 0
        lanes = " UNION ALL ".join(["SELECT ?"] * len(chosen))
        statement = AHEAD.format(task=self.task, lanes=lanes, now=_NOW, steps=MOST_STEPS)
        moment = _TIME.process_bind_param(task.available_at, self._dialect)
        parameters = (*chosen, task.priority, task.priority, task.priority, moment, task.priority, task.id, most)
        counted: int = connection.exec_driver_sql(statement, parameters).scalar_one()
        return counted


def _set_pragmas(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_before_savepoint(connection: sa.Connection, _: str) -> None:
    """Begin the transaction that the driver leaves out before a SAVEPOINT, whose release would commit then.

    As a writer at once: a transaction that reads first can not write any more once another one has written.
    """
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


class SQLiteListener:
    """Looks at the file's change counter: no statement reads a table, and other processes' commits show at once."""

    mode: ClassVar[str] = "file changes"

    def __init__(self, engine: sa.Engine) -> None:
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._closed = threading.Event()
        self._version = self._look()

    def wait(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        while not self._closed.wait(min(_LOOK_EVERY, max(0.0, end - time.monotonic()))):
            version = self._look()
            if version != self._version:
                self._version = version
                return True
            if time.monotonic() >= end:
                return False
        self._connection.close()
        return False

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> int:
        version: int = self._connection.exec_driver_sql("PRAGMA data_version").scalar_one()
        return version


_LOOK_EVERY = 0.05
_SHORT_WAIT = 1000
_REMEDY = "leave TASKENGINE_SQLITE_PRAGMAS on, or set the pragmas journal_mode = WAL and busy_timeout = 15000 on each connection"
# Readers and the one writer do not block each other; a writer waits for its turn; a commit survives a crash of the process.
_PRAGMAS = ("busy_timeout = 15000", "journal_mode = WAL", "synchronous = NORMAL")
_TIME = UtcDateTime()

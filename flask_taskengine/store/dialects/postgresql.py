"""PostgreSQL, the reference: one statement per verb, written by hand where its plan matters."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from ...domain.errors import ConfigError
from ...domain.task import Claimed, NewTask, Task
from ..gauges import MOST_COUNTED, QueueState, state_of
from ..lowwater import Lane, LowWater
from ..retention import Batch, Removed
from ..tables import Names
from ..types import read_json
from ..vitals import Depth, Vitals
from . import base
from .base import MOST_STEPS, Dialect, KeyHeld, Listener
from .postgresql_claim import claim_statement, lane_parameters, lanes_statement, wait_in_lanes_statement, wait_statement
from .postgresql_gauges import GAUGES
from .postgresql_insight import AHEAD, depth, vitals
from .postgresql_listen import PostgreSQLListener
from .postgresql_retention import prune, prune_statement

# By SQLSTATE: lock not available, deadlock detected, serialization failure.
_KEY_REASONS = {
    "55P03": "another open transaction holds it: try again once that has ended",
    "40P01": "another open transaction holds it and waits for this one: roll back and run the whole transaction again",
    "40001": "taken by a transaction that the snapshot of this one can not see: roll back and run the whole transaction again",
}
_INSERT_CHUNK = 2000
_CANCEL_TIMEOUT = 3.0

_NOTHING_MORE = (0, None, None, None, 0.0, None)
"""What a row says beside its type and payload where it says nothing: priority, key, attempts, time, delay, trace."""
_statements = logging.getLogger("sqlalchemy.engine.Engine")


class PostgreSQL(Dialect):
    """PostgreSQL 14 and later, by psycopg 3."""

    name: ClassVar[str] = "postgresql"
    wakes_across_network: ClassVar[bool] = True
    connect_limits: ClassVar[Mapping[str, Any]] = MappingProxyType({"connect_timeout": 10})
    begin: ClassVar[str] = "BEGIN ISOLATION LEVEL READ COMMITTED"

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        columns = "(type, payload, priority, idempotency_key, max_attempts, available_at, trace_context)"
        skip_existing = "ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"
        self._insert_new = (
            f"INSERT INTO {self.task} {columns} VALUES (%s, %s::jsonb, %s, %s, %s,"
            " coalesce(%s::timestamptz, statement_timestamp() + make_interval(secs => %s)), %s::jsonb) RETURNING id"
        )
        # Most tasks say no more: what is not sent costs nothing.
        self._insert_plain = f"INSERT INTO {self.task} (type, payload) VALUES (%s, %s::jsonb) RETURNING id"
        # Ordered, since PostgreSQL promises that INSERT ... SELECT ... ORDER BY hands out the ids in that order.
        self._insert_rows = (
            f"INSERT INTO {self.task} {columns} SELECT type, payload::jsonb, priority, key, max_attempts,"
            " coalesce(at, statement_timestamp() + make_interval(secs => delay)), trace::jsonb"
            " FROM unnest(%s::text[], %s::text[], %s::int[], %s::text[], %s::int[], %s::timestamptz[], %s::float8[], %s::text[])"
            " WITH ORDINALITY AS row (type, payload, priority, key, max_attempts, at, delay, trace, place) ORDER BY place"
        )
        self._insert_rows_new = f"{self._insert_rows} RETURNING id, NULL"
        self._insert_rows_keyed = f"{self._insert_rows} {skip_existing} RETURNING id, idempotency_key"
        self._complete = (
            f"UPDATE {self.task} SET status = 'SUCCEEDED', finished_at = statement_timestamp(), updated_at = statement_timestamp(),"
            " result = %s::jsonb WHERE id = %s AND claims = %s AND status = 'RUNNING' AND cancel_requested_at IS NULL"
        )

    @staticmethod
    def sqlalchemy_dialect() -> sa.Dialect:
        return PGDialect_psycopg()

    def prepare(self, engine: sa.Engine, *, tune: bool) -> None:
        if engine.dialect.driver != "psycopg":
            raise ConfigError(
                f"the driver {engine.dialect.driver!r} is not supported: write the database's address as postgresql+psycopg://..."
            )

    # --- enqueue ------------------------------------------------------------------------------------------------------

    def insert(self, connection: sa.Connection, new: NewTask) -> int:
        row = _row(new)
        if row[2:] == _NOTHING_MORE:
            return _id(_run(connection, self._insert_plain, row[:2]))
        return _id(_run(connection, self._insert_new, row))

    def insert_many(self, connection: sa.Connection, news: Sequence[NewTask]) -> list[int | None]:
        ids: list[int | None] = [None] * len(news)
        plain = [i for i, new in enumerate(news) if new.idempotency_key is None]
        # In the order of the keys, so that two callers with the same keys can not deadlock.
        keyed = sorted((i for i, new in enumerate(news) if new.idempotency_key is not None), key=lambda i: news[i].idempotency_key or "")
        for chunk in _chunks(plain):
            rows = self._insert_chunk(connection, self._insert_rows_new, [news[i] for i in chunk])
            for i, (task_id, _) in zip(chunk, sorted(rows), strict=True):
                ids[i] = task_id
        for chunk in _chunks(keyed):
            rows = self._insert_chunk(connection, self._insert_rows_keyed, [news[i] for i in chunk])
            created = {key: task_id for task_id, key in rows}
            for i in chunk:
                ids[i] = created.pop(news[i].idempotency_key, None)
        return ids

    @contextmanager
    def guard_keys(self, connection: sa.Connection) -> Iterator[None]:
        savepoint = connection.begin_nested()
        try:
            # A wait that the host has set for itself stays in force.
            unbounded = connection.exec_driver_sql(
                "SELECT CASE WHEN current_setting('lock_timeout') = '0' THEN set_config('lock_timeout', %s, true) END",
                (f"{int(base.KEY_WAIT * 1000)}ms",),
            ).scalar()
            yield
            if unbounded is not None:
                connection.exec_driver_sql("SELECT set_config('lock_timeout', '0', true)")
        except sa.exc.DBAPIError as error:
            savepoint.rollback()
            reason = _KEY_REASONS.get(getattr(error.orig, "sqlstate", None) or "")
            if reason is None:
                raise
            raise KeyHeld(reason) from error
        except BaseException:
            savepoint.rollback()
            raise
        savepoint.commit()

    @staticmethod
    def _insert_chunk(connection: sa.Connection, statement: str, news: list[NewTask]) -> list[tuple[int, str | None]]:
        columns = tuple(list(column) for column in zip(*map(_row, news), strict=True))
        return [(row[0], row[1]) for row in connection.exec_driver_sql(statement, columns)]

    def insert_absent(self, connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> bool:
        statement = insert(table).values(**values).on_conflict_do_nothing().returning(*table.primary_key)
        return connection.execute(statement).first() is not None

    # --- claim and complete -------------------------------------------------------------------------------------------

    def claim(
        self, connection: sa.Connection, node: str, rooms: Mapping[str, int], most: int, low_water: LowWater | None = None
    ) -> list[Claimed]:
        lanes = {} if low_water is None else low_water.lanes(rooms)
        # Only where the types compete for places are they ranked first.
        ranked = sum(min(room, most) for room in rooms.values()) > most
        statement = claim_statement(self.task, self.node, self.type, len(rooms), most, ranked=ranked, in_lanes=bool(lanes))
        parameters = {"node": node, "types": list(rooms), "rooms": list(rooms.values()), "most": most, **lane_parameters(lanes)}
        rows = connection.exec_driver_sql(statement, parameters).all()
        claimed = [_claimed(row[:-2]) for row in rows]
        claimed.sort(key=lambda task: (-task.priority, task.available_at, task.id))
        if low_water is not None:
            # What was ranked last may have got no place though it is due, and without a row it is not known whether.
            complete = not ranked or (bool(rows) and rows[0][-1] < most)
            taken = Counter(task.type for task in claimed)
            exhausted = {task_type for task_type, room in rooms.items() if complete and taken[task_type] < min(room, most)}
            low_water.looked(claimed, exhausted, min((float(row[-2]) for row in rows), default=None), everywhere=not lanes)
            if low_water.to_survey:
                low_water.surveyed(rooms, self._lanes(connection, rooms))
        return claimed

    def _lanes(self, connection: sa.Connection, types: Iterable[str]) -> dict[Lane, datetime]:
        statement = lanes_statement(self.task, "SELECT unnest(%(types)s::text[])")
        rows = connection.exec_driver_sql(statement, {"types": list(types)})
        return {(task_type, priority): begin for task_type, priority, begin in rows}

    def complete(self, connection: sa.Connection, task_id: int, claims: int, result: str | None) -> bool:
        return bool(_run(connection, self._complete, (result, task_id, claims)).rowcount == 1)

    def complete_many(self, connection: sa.Connection, done: Sequence[tuple[int, int, str | None]]) -> set[int]:
        # Locked in the order of the ids, so that two statements over the same rows can not deadlock.
        statement = (
            f"WITH done AS MATERIALIZED (SELECT t.id, d.result FROM {self.task} t"
            " JOIN unnest(%s::bigint[], %s::bigint[], %s::text[]) AS d (id, claims, result) ON t.id = d.id"
            " WHERE t.status = 'RUNNING' AND t.claims = d.claims AND t.cancel_requested_at IS NULL ORDER BY t.id FOR NO KEY UPDATE OF t)"
            f" UPDATE {self.task} AS t SET status = 'SUCCEEDED', finished_at = statement_timestamp(),"
            " updated_at = statement_timestamp(), result = done.result::jsonb FROM done WHERE t.id = done.id RETURNING t.id"
        )
        ids, claims, results = zip(*done, strict=True)
        return set(connection.exec_driver_sql(statement, (list(ids), list(claims), list(results))).scalars())

    def prune(self, connection: sa.Connection, batch: Batch) -> Removed:
        preparer = self.sqlalchemy_dialect().identifier_preparer
        return prune(connection, prune_statement(self.tables, preparer, archive=batch.archive, most=batch.most), batch)

    # --- looking ahead ------------------------------------------------------------------------------------------------

    def seconds_to_due(self, connection: sa.Connection, types: Sequence[str], low_water: LowWater | None = None) -> dict[str, float]:
        lanes = {} if low_water is None else low_water.lanes(types)
        if lanes:
            return self._waits(connection, wait_in_lanes_statement(self.task, self.type), lane_parameters(lanes))
        known = (
            "SELECT w.type FROM unnest(%(types)s::text[]) AS w (type)"
            f" WHERE NOT EXISTS (SELECT FROM {self.type} p WHERE p.type IN (w.type, '*') AND p.paused_at IS NOT NULL)"
        )
        return self._waits(connection, wait_statement(self.task, known), {"types": list(types)})

    def queue_state(self, connection: sa.Connection, lease: float) -> QueueState:
        statement = GAUGES.format(task=self.task, type=self.type, node=self.node, most=MOST_COUNTED)
        return state_of(tuple(row) for row in connection.exec_driver_sql(statement, {"lease": lease, "task": self.task}))

    def pending_types(self, connection: sa.Connection) -> dict[str, float]:
        first = f"(SELECT type FROM {self.task} WHERE status = 'PENDING' AND finished_at IS NULL {{more}} ORDER BY type LIMIT 1)"
        known = (
            f"SELECT type FROM (WITH RECURSIVE known (type) AS (SELECT {first.format(more='')} UNION ALL"
            f" SELECT {first.format(more='AND type > known.type')} FROM known WHERE known.type IS NOT NULL)"
            " SELECT type FROM known WHERE type IS NOT NULL) k"
        )
        return self._waits(connection, wait_statement(self.task, known), {})

    def payload_has(self, path: Sequence[str], value: Any) -> sa.ColumnElement[bool]:
        inside = self.tables.task.c.payload.op("#>")(sa.cast(list(path), ARRAY(sa.Text)))
        return inside == sa.cast(sa.literal(json.dumps(value), sa.Text), JSONB)

    @staticmethod
    def _waits(connection: sa.Connection, statement: str, parameters: dict[str, Any]) -> dict[str, float]:
        return {task_type: float(wait) for task_type, wait in connection.exec_driver_sql(statement, parameters)}

    def ahead(self, connection: sa.Connection, task: Task, types: Sequence[str], most: int) -> int:
        statement = AHEAD.format(task=self.task, steps=MOST_STEPS, most=most)
        parameters = {"types": list(types), "priority": task.priority, "available_at": task.available_at, "id": task.id}
        counted: int = connection.exec_driver_sql(statement, parameters).scalar_one()
        return counted

    def depth(self, connection: sa.Connection) -> Depth:
        return depth(connection, self.task)

    def vitals(self, connection: sa.Connection) -> Vitals:
        return vitals(connection, self.task)

    # --- locks and wake-ups -------------------------------------------------------------------------------------------

    def lock_limits(self, connection: sa.Connection, types: Sequence[str]) -> None:
        # One order for everybody: two claims that want the same two types must not wait for each other.
        for key in sorted(self._lock_key("limit", task_type) for task_type in types):
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (key,))

    def wake(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("SELECT pg_notify(%s, '')", (self.tables.names.channel,))

    def doubts(self, connection: sa.Connection) -> Sequence[str]:
        isolation = connection.get_isolation_level()
        if isolation not in ("REPEATABLE READ", "SERIALIZABLE"):
            return ()
        cause = f"the app's transactions are {isolation}, and what the database refuses for that counts as a failed attempt"
        return (f"{cause}: give such types attempts enough, or the app READ COMMITTED",)

    def commits_by_itself(self, connection: sa.Connection) -> bool:
        driver: Any = connection.connection.driver_connection
        status: int = driver.info.transaction_status
        return status == psycopg.pq.TransactionStatus.IDLE

    def listener(self, engine: sa.Engine, url: str | None) -> Listener:
        return PostgreSQLListener(engine, url, self.tables.names.channel)

    def isolates_single_statements(self, connection: sa.Connection) -> bool:
        # Not changed for the session: behind a pooler that would be another client's session next.
        level: str = connection.exec_driver_sql("SHOW default_transaction_isolation").scalar_one()
        return level != "read committed"

    def cancel_statement(self, driver: Any) -> None:
        try:
            driver.cancel_safe(timeout=_CANCEL_TIMEOUT)
        except psycopg.Error:
            self.sever(driver)

    def sever(self, driver: Any) -> None:
        # Not close(): that would free the socket under the thread which waits on it.
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(driver.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)

    def _lock_key(self, *what: str) -> int:
        names = self.tables.names
        text = "\0".join((names.schema or "", names.prefix, names.task, *what))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def _run(connection: sa.Connection, statement: str, parameters: tuple[Any, ...]) -> Any:
    """Run a statement by the driver itself where nobody follows statements; return something with ``fetchone`` and ``rowcount``.

    An enqueue and the end of a task are one statement each, of which SQLAlchemy's result would be the larger part of the cost.
    Errors are those that SQLAlchemy raises, and a connection that breaks by one is not used again.
    """
    engine = connection.engine
    # SQLAlchemy's own marks; where a version has none, somebody may follow.
    followed = getattr(connection, "_has_events", True) or getattr(engine, "_has_events", True)
    if followed or engine.echo or _statements.isEnabledFor(logging.INFO):
        return connection.exec_driver_sql(statement, parameters)
    if not connection.in_transaction():
        connection.begin()
    driver: Any = connection.connection.driver_connection
    try:
        return driver.execute(statement, parameters)
    except psycopg.Error as error:
        lost = connection.dialect.is_disconnect(error, driver, None)  # type: ignore[arg-type]
        if lost:
            connection.invalidate(error)
        raise sa.exc.DBAPIError.instance(
            statement,
            parameters,
            error,
            psycopg.Error,
            hide_parameters=engine.hide_parameters,
            connection_invalidated=lost,
            dialect=connection.dialect,
        ) from error


def _id(written: Any) -> int:
    task_id: int = written.fetchone()[0]
    return task_id


def _row(new: NewTask) -> tuple[Any, ...]:
    return (
        new.type,
        new.payload,
        new.priority,
        new.idempotency_key,
        new.max_attempts,
        new.available_at,
        new.delay or 0.0,
        new.trace_context,
    )


def _claimed(row: Sequence[Any]) -> Claimed:
    task_id, task_type, payload, *others = row
    return Claimed(task_id, task_type, read_json(payload), *others)


def _chunks(places: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(places), _INSERT_CHUNK):
        yield places[start : start + _INSERT_CHUNK]

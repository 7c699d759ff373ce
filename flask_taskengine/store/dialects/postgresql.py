"""PostgreSQL, the reference: one statement per verb, written by hand where its plan matters."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from ...domain.task import Claimed, NewTask, Task
from ..retention import Batch, Removed
from ..tables import Names
from ..types import read_json
from . import base
from .base import MOST_STEPS, Dialect, KeyHeld, Listener
from .postgresql_insight import AHEAD
from .postgresql_listen import PostgreSQLListener
from .postgresql_retention import prune, prune_statement

# By SQLSTATE: lock not available, deadlock detected, serialization failure.
_KEY_REASONS = {
    "55P03": "another open transaction holds it: try again once that has ended",
    "40P01": "another open transaction holds it and waits for this one: roll back and run the whole transaction again",
    "40001": "taken by a transaction that the snapshot of this one can not see: roll back and run the whole transaction again",
}
_INSERT_CHUNK = 2000
_JSON_PLACES = (2, 11)
"""Where the payload and the trace context stand in a claimed row."""
_CANCEL_TIMEOUT = 3.0


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
        self._insert = (
            f"INSERT INTO {self.task} {columns} VALUES (%s, %s::jsonb, %s, %s, %s,"
            " coalesce(%s::timestamptz, statement_timestamp() + make_interval(secs => %s)), %s::jsonb)"
        )
        self._insert_new = f"{self._insert} RETURNING id"
        self._insert_keyed = f"{self._insert} {skip_existing} RETURNING id"
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
        self._claims: dict[tuple[int, bool], str] = {}

    @staticmethod
    def sqlalchemy_dialect() -> sa.Dialect:
        return PGDialect_psycopg()

    # --- enqueue ------------------------------------------------------------------------------------------------------

    def insert(self, connection: sa.Connection, new: NewTask) -> int | None:
        statement = self._insert_new if new.idempotency_key is None else self._insert_keyed
        created: int | None = connection.exec_driver_sql(statement, _row(new)).scalar()
        return created

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

    # --- claim and complete -------------------------------------------------------------------------------------------

    def claim(self, connection: sa.Connection, node: str, rooms: Mapping[str, int], most: int) -> list[Claimed]:
        parameters = {"node": node, "types": list(rooms), "rooms": list(rooms.values()), "most": most}
        statement = self._claim_statement(most, ranked=sum(min(room, most) for room in rooms.values()) > most)
        rows = connection.exec_driver_sql(statement, parameters).all()
        claimed = [Claimed(*(read_json(value) if i in _JSON_PLACES else value for i, value in enumerate(row))) for row in rows]
        claimed.sort(key=lambda task: (-task.priority, task.available_at, task.id))
        return claimed

    def _claim_statement(self, most: int, *, ranked: bool) -> str:
        """Return the claim; only where the types compete for places are they ranked first."""
        ceiling = 1 << (most - 1).bit_length()
        statement = self._claims.get((ceiling, ranked))
        if statement is None:
            walk, locked_walk = (_WALK.format(task=self.task, ceiling=ceiling, lock=lock) for lock in ("", "FOR UPDATE SKIP LOCKED"))
            best = _BEST.format(walk=walk) if ranked else _ALL
            statement = _CLAIM.format(task=self.task, node=self.node, type=self.type, best=best, locked_walk=locked_walk)
            self._claims[ceiling, ranked] = statement
        return statement

    def complete(self, connection: sa.Connection, task_id: int, claims: int, result: str | None) -> bool:
        return connection.exec_driver_sql(self._complete, (result, task_id, claims)).rowcount == 1

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

    def seconds_to_due(self, connection: sa.Connection, types: Sequence[str]) -> dict[str, float]:
        known = (
            "SELECT w.type FROM unnest(%(types)s::text[]) AS w (type)"
            f" WHERE NOT EXISTS (SELECT FROM {self.type} p WHERE p.type IN (w.type, '*') AND p.paused_at IS NOT NULL)"
        )
        return self._due(connection, known, {"types": list(types)})

    def pending_types(self, connection: sa.Connection) -> dict[str, float]:
        first = f"(SELECT type FROM {self.task} WHERE status = 'PENDING' AND finished_at IS NULL {{more}} ORDER BY type LIMIT 1)"
        known = (
            f"SELECT type FROM (WITH RECURSIVE known (type) AS (SELECT {first.format(more='')} UNION ALL"
            f" SELECT {first.format(more='AND type > known.type')} FROM known WHERE known.type IS NOT NULL)"
            " SELECT type FROM known WHERE type IS NOT NULL) k"
        )
        return self._due(connection, known, {})

    def _due(self, connection: sa.Connection, types: str, parameters: dict[str, Any]) -> dict[str, float]:
        statement = _DUE.format(task=self.task, types=types)
        return {task_type: float(wait) for task_type, wait in connection.exec_driver_sql(statement, parameters)}

    def ahead(self, connection: sa.Connection, task: Task, types: Sequence[str], most: int) -> int:
        statement = AHEAD.format(task=self.task, steps=MOST_STEPS, most=most)
        parameters = {"types": list(types), "priority": task.priority, "available_at": task.available_at, "id": task.id}
        counted: int = connection.exec_driver_sql(statement, parameters).scalar_one()
        return counted

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


def _chunks(places: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(places), _INSERT_CHUNK):
        yield places[start : start + _INSERT_CHUNK]


# Walks each type's slice of the index from its highest priority down, one probe per priority, and stops as soon as it has
# enough: neither future rows of a high priority nor a backlog of a type that is left out cost anything. The best of all
# types are found without a lock, and then as many of each type are locked, so that no row is locked that is not taken,
# and a node that comes second goes on behind the rows of the first. Materialised, so that no plan can run the locking
# part twice. The limit written as a number and the array are for the planner: without the one it expects a tenth of the
# table and compiles (JIT) first, without the other it may read the whole table to find the rows again.
_CLAIM = """
WITH alive AS MATERIALIZED (
  SELECT id FROM {node} WHERE id = %(node)s AND expired_at IS NULL FOR KEY SHARE
), lane AS MATERIALIZED (
  SELECT w.type, least(w.room, %(most)s) AS room FROM unnest(%(types)s::text[], %(rooms)s::int[]) AS w (type, room)
  WHERE EXISTS (SELECT FROM alive)
    AND NOT EXISTS (SELECT FROM {type} p WHERE p.type IN (w.type, '*') AND p.paused_at IS NOT NULL)
), best AS MATERIALIZED (
  {best}
), picked AS MATERIALIZED (
  SELECT r.id FROM best AS lane CROSS JOIN LATERAL ({locked_walk}) r
)
UPDATE {task} AS t SET status = 'RUNNING', attempts = t.attempts + 1, claims = t.claims + 1, claimed_by = %(node)s,
  claimed_at = statement_timestamp(), updated_at = statement_timestamp()
WHERE t.id = ANY (ARRAY(SELECT id FROM picked))
RETURNING t.id, t.type, t.payload::text, t.priority, t.attempts, t.max_attempts, t.available_at, t.created_at, t.claimed_at, t.claims,
  t.idempotency_key, t.trace_context::text
"""

_BEST = """SELECT b.type, count(*) AS room FROM (
    SELECT lane.type FROM lane CROSS JOIN LATERAL ({walk}) w ORDER BY w.priority DESC, w.available_at, w.id LIMIT %(most)s) b
  GROUP BY b.type"""
_ALL = "SELECT type, room FROM lane"

# The due tasks of one type, as many as it has room, in the order in which they are to start.
_WALK = """
    SELECT f.id, f.available_at, s.priority FROM (
      WITH RECURSIVE step (priority) AS (
        SELECT (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type = lane.type
          ORDER BY t.priority DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type = lane.type
          AND t.priority < step.priority ORDER BY t.priority DESC LIMIT 1)
        FROM step WHERE step.priority IS NOT NULL
      ) SELECT priority FROM step WHERE priority IS NOT NULL
    ) s CROSS JOIN LATERAL (SELECT c.id, c.available_at FROM (
      SELECT t.id, t.available_at FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type = lane.type
        AND t.priority = s.priority AND t.available_at <= statement_timestamp()
      ORDER BY t.available_at, t.id LIMIT lane.room {lock}) c
    LIMIT {ceiling}) f
    LIMIT lane.room"""

# One probe per type and priority, as in the claim.
_DUE = """
WITH RECURSIVE known (type) AS MATERIALIZED ({types}), lane (type, priority) AS (
  SELECT known.type, (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = known.type ORDER BY t.priority DESC LIMIT 1) FROM known
  UNION ALL
  SELECT lane.type, (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = lane.type AND t.priority < lane.priority ORDER BY t.priority DESC LIMIT 1)
  FROM lane WHERE lane.priority IS NOT NULL
)
SELECT lane.type, EXTRACT(epoch FROM min(first.available_at) - statement_timestamp())
FROM lane CROSS JOIN LATERAL (SELECT t.available_at FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
  AND t.type = lane.type AND t.priority = lane.priority ORDER BY t.available_at LIMIT 1) first
GROUP BY lane.type
"""

"""Which plans PostgreSQL makes for the engine's statements: each index is needed, and none of them reads the whole task table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine.domain.states import TaskStatus
from flask_taskengine.domain.task import NewTask
from flask_taskengine.store import nodes, tasks
from flask_taskengine.store.dialects.postgresql import PostgreSQL
from flask_taskengine.store.retention import Batch
from flask_taskengine.store.tables import Names
from tests.support.databases import PostgresqlDatabases
from tests.support.plans import costs_of

DIALECT = PostgreSQL(Names())
NODE = {"id": "n", "label": "n", "host": "h", "pid": 1, "version": "1", "concurrency": 8, "types": ["a", "b"], "limits": {}}

FILL = """
INSERT INTO taskengine_task (type, status, priority, finished_at, claimed_by, claims, attempts, idempotency_key)
SELECT (ARRAY['a', 'b', 'c'])[mod(i, 3) + 1], s.status, mod(i, 5),
  CASE WHEN s.status IN ('SUCCEEDED', 'DEAD') THEN now() - i * interval '1 s' END,
  CASE WHEN s.status = 'RUNNING' THEN 'n' END, 1, 1,
  CASE WHEN mod(i, 2) = 0 THEN 'key ' || s.status || i END
FROM (VALUES ('PENDING', 20000), ('RUNNING', 20), ('SUCCEEDED', 25000), ('DEAD', 5000)) AS s (status, number),
  LATERAL generate_series(1, s.number) AS i
"""

STATEMENTS: dict[str, Callable[[sa.Connection], Any]] = {
    "claim": lambda c: DIALECT.claim(c, "n", {"a": 5, "b": 5}, 8),
    "claim of one type": lambda c: DIALECT.claim(c, "n", {"a": 5}, 5),
    "due look-ahead": lambda c: DIALECT.seconds_to_due(c, ["a", "b", "c"]),
    "types that wait": DIALECT.pending_types,
    "running count": lambda c: tasks.running_by_type(c, DIALECT.tables, ["a", "b"]),
    "roll call": lambda c: tasks.running_on(c, DIALECT.tables, "n"),
    "orphans": lambda c: tasks.orphaned_nodes(c, DIALECT.tables, 60),
    "retention": lambda c: DIALECT.prune(c, Batch(status=TaskStatus.SUCCEEDED, kept_for=60, archive=False, most=100)),
    "tasks of keys": lambda c: tasks.ids_of_keys(c, DIALECT.tables, ["key DEAD2", "key DEAD4"]),
    "one task": lambda c: tasks.get(c, DIALECT.tables, 17),
    "newest tasks": lambda c: tasks.newest(c, DIALECT.tables),
    "completion": lambda c: DIALECT.complete_many(c, [(17, 1, None), (18, 1, None)]),
}


@pytest.fixture(scope="module")
def filled(postgresql_databases: PostgresqlDatabases) -> Iterator[sa.Engine]:
    """Return a database with 50,000 tasks of several types, priorities and statuses, which the planner knows."""
    url = postgresql_databases.create()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        nodes.register(connection, DIALECT.tables, NODE)
        connection.exec_driver_sql(FILL)
        connection.exec_driver_sql("ANALYZE")
    yield engine
    engine.dispose()
    postgresql_databases.drop(url)


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_reads_the_whole_task_table(filled: sa.Engine, statement: str, generic: bool) -> None:
    """Each finds its rows by an index, whether it is planned with its values or without."""
    for cost in costs_of(filled, STATEMENTS[statement], generic=generic):
        assert "Seq Scan taskengine_task:" not in cost.plan, cost


def test_every_index_is_used(filled: sa.Engine) -> None:
    """An index costs every write: each one that stands in the tables is in the plan of some statement."""
    plans = "\n".join(cost.plan for action in STATEMENTS.values() for cost in costs_of(filled, action))
    indexes = {str(index.name) for index in DIALECT.tables.task.indexes}
    assert {name for name in indexes if name not in plans} == set()


def test_a_claim_keeps_its_limit_whatever_the_planner_believes(postgresql_url: str) -> None:
    """Analyzed while it was empty, then filled: no plan claims more rows than were asked for (faults 17)."""
    engine = sa.create_engine(postgresql_url)
    with engine.begin() as connection:
        nodes.register(connection, DIALECT.tables, NODE)
        connection.exec_driver_sql("ALTER TABLE taskengine_task SET (autovacuum_enabled = off)")
        connection.exec_driver_sql("ANALYZE taskengine_task")
    with engine.begin() as connection:
        DIALECT.insert_many(connection, [NewTask(type="ab"[n % 2], payload=None, priority=n % 3) for n in range(20_000)])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for n in range(300):
            most, rooms = n % 9 + 1, {"a": n % 4 + 1, "b": n % 5 + 1}
            taken = [task.type for task in DIALECT.claim(connection, "n", rooms, most)]
            assert len(taken) == min(most, sum(min(room, most) for room in rooms.values()))
            assert all(taken.count(task_type) <= room for task_type, room in rooms.items())
    engine.dispose()

"""What the engine's statements cost does not grow with the table: counted in rows and buffers, not in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine.domain.states import TaskStatus
from flask_taskengine.engine.explain import explain
from flask_taskengine.engine.registry import Registry
from flask_taskengine.settings import Settings
from flask_taskengine.store import nodes, tasks
from flask_taskengine.store.dialects.postgresql import PostgreSQL
from flask_taskengine.store.retention import Batch
from flask_taskengine.store.tables import Names
from tests.support.databases import PostgresqlDatabases
from tests.support.plans import Cost, costs_of

MANY = 200_000
PRUNED = 100

INSERT = "INSERT INTO taskengine_task (type, status, priority, available_at, finished_at, claimed_by, attempts, claims)"
SERIES = f"FROM generate_series(1, {MANY}) AS i"
SHAPES = {
    "finished": f"{INSERT} SELECT 'email', 'SUCCEEDED', 0, now() - interval '9 d', now() - i * interval '1 s', 'gone', 1, 1 {SERIES}",
    "due": f"{INSERT} SELECT 'email', 'PENDING', 0, now() - i * interval '1 ms', NULL, NULL, 0, 0 {SERIES}",
    "future": f"{INSERT} SELECT 'email', 'PENDING', 9, now() + interval '1 d' + i * interval '1 s', NULL, NULL, 0, 0 {SERIES}",
    "saturated": f"{INSERT} SELECT 'full', 'PENDING', 9, now() - i * interval '1 ms', NULL, NULL, 0, 0 {SERIES}",
}
"""Each leaves so many rows in the way of the tasks that can run."""
LANES = "generate_series(1, 20) AS i, unnest('{email,report}'::text[]) AS t, unnest('{0,1}'::int[]) AS p"
RUNNABLE = [
    f"{INSERT} SELECT t, 'PENDING', p, now() - i * interval '1 s', NULL, NULL, 0, 0 FROM {LANES}",
    f"{INSERT} SELECT 'email', 'RUNNING', 0, now(), NULL, 'a', 1, 1 FROM generate_series(1, 8) AS i",
    f"{INSERT} SELECT 'full', 'RUNNING', 0, now(), NULL, 'b', 1, 1 FROM generate_series(1, 8) AS i",
]

Examine = Callable[..., list[Cost]]


@pytest.fixture(scope="module", params=list(SHAPES))
def grown(request: pytest.FixtureRequest, postgresql_databases: PostgresqlDatabases) -> Iterator[sa.Engine]:
    """Return a database with one of the shapes, which no VACUUM and no ANALYZE has seen."""
    url = postgresql_databases.create()
    engine = sa.create_engine(url)
    dialect = PostgreSQL(Names())
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE taskengine_task SET (autovacuum_enabled = off)")
        for name in ("a", "b"):
            row = {"id": name, "label": name, "host": "h", "pid": 1, "version": "1", "concurrency": 8, "types": ["email", "report", "full"]}
            nodes.register(connection, dialect.tables, row | {"limits": {"full": {"cluster_wide": 8}}})
        for statement in [SHAPES[request.param], *RUNNABLE]:
            connection.exec_driver_sql(statement)
    yield engine
    engine.dispose()
    postgresql_databases.drop(url)


@pytest.fixture(params=["unknown to the planner", "after ANALYZE"])
def engine(request: pytest.FixtureRequest, grown: sa.Engine) -> sa.Engine:
    """Return the database without and with statistics."""
    with grown.begin() as connection:
        connection.exec_driver_sql("ANALYZE" if request.param == "after ANALYZE" else "SELECT")
    return grown


@pytest.fixture(params=["custom plan", "generic plan"])
def examine(request: pytest.FixtureRequest, engine: sa.Engine) -> Examine:
    """Return what examines an action on the dialect, with both kinds of plans."""
    dialect = PostgreSQL(Names())

    def run(action: Callable[[sa.Connection, PostgreSQL], Any]) -> list[Cost]:
        return costs_of(engine, lambda connection: action(connection, dialect), generic=request.param == "generic plan")

    return run


def bounded(costs: list[Cost], *, buffers: int, rows: int) -> None:
    """Check that no statement costs more."""
    assert costs
    for cost in costs:
        assert cost.buffers <= buffers, cost
        assert cost.rows <= rows, cost


def test_a_claim_costs_the_same_on_every_table(examine: Examine) -> None:
    """Finished rows, a backlog, future rows of a high priority and rows of a type without room cost a claim nothing."""
    bounded(examine(lambda c, d: d.claim(c, "a", {"email": 16, "report": 16}, 16)), buffers=400, rows=50)


def test_looking_ahead_costs_the_same_on_every_table(examine: Examine) -> None:
    """When the next task is due is found by a probe per type and priority."""
    bounded(examine(lambda c, d: d.seconds_to_due(c, ["email", "report", "full"])), buffers=100, rows=100)
    bounded(examine(lambda c, d: d.pending_types(c)), buffers=100, rows=100)


def test_counting_what_runs_costs_the_same_on_every_table(examine: Examine) -> None:
    """Limits, the roll call and the search for orphans see the running rows alone."""
    bounded(examine(lambda c, d: tasks.running_by_type(c, d.tables, ["email", "full"])), buffers=50, rows=50)
    bounded(examine(lambda c, d: tasks.running_on(c, d.tables, "a")), buffers=50, rows=50)
    bounded(examine(lambda c, d: tasks.orphaned_nodes(c, d.tables, 60)), buffers=100, rows=50)


def test_pruning_a_batch_costs_the_same_on_every_table(examine: Examine) -> None:
    """A batch visits what it removes, and the attempts of that."""
    for archive in (False, True):
        batch = Batch(status=TaskStatus.SUCCEEDED, kept_for=3600, archive=archive, most=PRUNED)
        bounded(examine(lambda c, d, batch=batch: d.prune(c, batch)), buffers=8 * PRUNED, rows=PRUNED)


def test_explaining_costs_the_same_on_every_table(engine: sa.Engine, examine: Examine) -> None:
    """The last in the queue counts no more than a thousand that come first."""
    with engine.connect() as connection:
        last = connection.exec_driver_sql(
            "SELECT id FROM taskengine_task WHERE type = 'email' AND status = 'PENDING' AND priority = 0 ORDER BY available_at DESC LIMIT 1"
        ).scalar_one()
    settings, registry = Settings(), Registry()
    bounded(examine(lambda c, d: explain(c, d, settings, registry, last)), buffers=300, rows=1000)

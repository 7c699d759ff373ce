"""What the gauges of the queue cost the server, in rows and pages, which do not depend on the machine."""

from __future__ import annotations

import sqlalchemy as sa

from flask_taskengine.store.dialects import dialect_for
from flask_taskengine.store.gauges import MOST_COUNTED
from flask_taskengine.store.tables import Names
from tests.support.plans import Cost, costs_of


def _cost(url: str, filled: str) -> Cost:
    engine = sa.create_engine(url)
    dialect = dialect_for("postgresql", Names())
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text(filled))
        connection.execute(sa.text("VACUUM ANALYZE taskengine_task"))
    [cost] = costs_of(engine, lambda connection: dialect.queue_state(connection, 60))
    engine.dispose()
    return cost


def test_ended_tasks_cost_nothing(postgresql_url: str) -> None:
    """However many have ended, a look at the queue reads none of them: one statement, a handful of pages."""
    few = _cost(postgresql_url, "INSERT INTO taskengine_task (type) SELECT 'waits' FROM generate_series(1, 50)")
    ended = "INSERT INTO taskengine_task (type, status, finished_at) SELECT 'done', 'SUCCEEDED', now() FROM generate_series(1, 100000)"
    many = _cost(postgresql_url, ended)
    assert many.rows <= 100, str(many)
    assert many.buffers <= few.buffers + 20, f"{few}\n{many}"


def test_a_long_queue_costs_so_much_and_no_more(postgresql_url: str) -> None:
    """Of a type with many waiting tasks a bounded part is read."""
    cost = _cost(postgresql_url, f"INSERT INTO taskengine_task (type) SELECT 'waits' FROM generate_series(1, {2 * MOST_COUNTED})")
    assert cost.rows <= MOST_COUNTED + 100, str(cost)

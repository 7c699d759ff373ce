"""The ground that the other tests stand on."""

from __future__ import annotations

import sqlalchemy as sa


def test_each_test_has_a_database_with_the_schema(database_url: str) -> None:
    """A test's database has the engine's tables, and nothing in them."""
    engine = sa.create_engine(database_url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM taskengine_task").scalar_one() == 0
    engine.dispose()

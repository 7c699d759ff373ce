"""How the schema comes into a SQLite file, whichever way the host's engine begins its transactions."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine.domain.errors import ConfigError
from flask_taskengine.store import migrations
from flask_taskengine.store.tables import Names

from ..support.waiting import wait_until

pytestmark = pytest.mark.sqlite
NAMES = Names()


def plain(url: str) -> sa.Engine:
    """Return the engine of a host that has set nothing."""
    return sa.create_engine(url, connect_args={"timeout": 0.01})


def autocommit(url: str) -> sa.Engine:
    """Return an engine that commits every statement."""
    return sa.create_engine(url, connect_args={"timeout": 0.01}, isolation_level="AUTOCOMMIT")


def own_begin(statement: str) -> Callable[[str], sa.Engine]:
    """Return a maker of engines that say BEGIN themselves, as SQLAlchemy's documentation shows."""

    def make(url: str) -> sa.Engine:
        engine = sa.create_engine(url, connect_args={"timeout": 0.01})

        @sa.event.listens_for(engine, "connect")
        def _(connection: Any, record: object) -> None:
            connection.isolation_level = None

        @sa.event.listens_for(engine, "begin")
        def _(connection: sa.Connection) -> None:
            connection.exec_driver_sql(statement)

        return engine

    return make


def driver_transactions(url: str) -> sa.Engine:
    """Return an engine whose driver keeps a transaction open always, as PEP 249 wants it."""
    return sa.create_engine(url, connect_args={"timeout": 0.01, "autocommit": False})


WAYS = [plain, autocommit, own_begin("BEGIN"), own_begin("BEGIN IMMEDIATE")]
if sys.version_info >= (3, 12):
    WAYS.append(driver_transactions)


@pytest.fixture(params=WAYS)
def engine(request: pytest.FixtureRequest, empty_sqlite_url: str) -> Iterator[sa.Engine]:
    """Return an engine on an empty file, for each way to begin; its own time-out is far too short to wait."""
    engine: sa.Engine = request.param(empty_sqlite_url)
    yield engine
    engine.dispose()


def test_a_migration_works_whichever_way_the_host_begins(engine: sa.Engine) -> None:
    """Up, again, down and up, each in one transaction."""
    head = migrations.head_revision()
    assert migrations.migrate(engine, NAMES) == migrations.Migration(None, head)
    assert migrations.migrate(engine, NAMES) == migrations.Migration(head, head)
    migrations.downgrade(engine, NAMES)
    assert migrations.migrate(engine, NAMES) == migrations.Migration(None, head)


@pytest.mark.parametrize("engine", [way for way in WAYS if way is not WAYS[3]], indirect=True)
def test_a_migration_waits_for_another_writer(engine: sa.Engine) -> None:
    """Longer than the host's own time-out, which is put back afterwards."""
    assert engine.url.database is not None
    writer = sqlite3.connect(engine.url.database, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    waiting: list[str] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def _(connection: object, cursor: object, statement: str, *rest: object) -> None:
        waiting.append(statement)

    with ThreadPoolExecutor() as threads:
        done = threads.submit(migrations.migrate, engine, NAMES)
        wait_until(lambda: done.done() or "BEGIN IMMEDIATE" in waiting, what="the migration to ask for the lock")
        writer.execute("CREATE TABLE host (id)")
        writer.execute("COMMIT")
        assert done.result(timeout=10).before is None
    writer.close()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 10
        assert {"host", "taskengine_task"} <= set(sa.inspect(connection).get_table_names())


def test_a_failed_migration_leaves_nothing(engine: sa.Engine) -> None:
    """What stands in the way is an error, and the tables made before it are gone again."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE host (id)")
        connection.exec_driver_sql("CREATE INDEX taskengine_lease ON host (id)")
    with pytest.raises(sa.exc.OperationalError, match="taskengine_lease"):
        migrations.migrate(engine, NAMES)
    assert sa.inspect(engine).get_table_names() == ["host"]


def test_a_schema_is_an_attached_database(empty_sqlite_url: str, tmp_path: Path) -> None:
    """SQLite can not create one, and says what to do; an attached one is used."""
    engine = plain(empty_sqlite_url)
    names = Names(schema="tasks")
    with pytest.raises(ConfigError, match="SQLite has no schema 'tasks': leave TASKENGINE_SCHEMA unset, or ATTACH"):
        migrations.migrate(engine, names)

    @sa.event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, record: object) -> None:
        connection.execute(f"ATTACH '{tmp_path / 'tasks.sqlite'}' AS tasks")

    engine.dispose()
    assert migrations.migrate(engine, names).before is None
    assert migrations.migrate(engine, names).before == migrations.head_revision()
    with engine.connect() as connection:
        assert migrations.schema_faults(connection, names) == []
        assert sa.inspect(connection).get_table_names() == []
    engine.dispose()

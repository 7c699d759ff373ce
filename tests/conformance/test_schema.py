"""The schema that the migrations write, on every database."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import context as alembic_context
from alembic import op as alembic_op
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory

from flask_taskengine.domain.errors import ConfigError
from flask_taskengine.store import migrations
from flask_taskengine.store.dialects.schema import run, schema_dialect_for
from flask_taskengine.store.tables import Names, Tables

NAMES = Names()
ROOT = Path(migrations.__file__).parents[2]

DESCRIPTION = {
    "sqlite": ["SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT IN ('taskengine_version', 'sqlite_sequence')"],
    "postgresql": [
        """SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default, identity_generation
           FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'taskengine_version'""",
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'taskengine_version'",
        """SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
           WHERE connamespace = 'public'::regnamespace AND conrelid <> to_regclass('taskengine_version')""",
        """SELECT relname, reloptions FROM pg_class
           WHERE relnamespace = 'public'::regnamespace AND relname <> 'taskengine_version' AND relkind = 'r'""",
        "SELECT pg_get_triggerdef(oid), tgenabled FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    ],
}


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[sa.Engine]:
    """Return an engine on a database that has no tables."""
    engine = sa.create_engine(empty_database_url)
    yield engine
    engine.dispose()


def structure(connection: sa.Connection) -> list[str]:
    """Return everything that stands in the database, but for the version table, as the database itself describes it."""
    rows = [row for query in DESCRIPTION[connection.dialect.name] for row in connection.exec_driver_sql(query)]
    return sorted(" ".join(str(tuple(row)).replace("\\n", " ").replace("\\t", " ").split()) for row in rows)


def tables_of(engine: sa.Engine) -> set[str]:
    """Return the names of the tables in the default schema."""
    return set(sa.inspect(engine).get_table_names())


def migrated(engine: sa.Engine) -> list[str]:
    """Migrate, and return the structure."""
    migrations.migrate(engine, NAMES)
    with engine.connect() as connection:
        return structure(connection)


def test_the_scripts_write_what_the_tables_say(engine: sa.Engine) -> None:
    """The frozen scripts and the tables in the code make the same schema: columns, indexes, constraints, options, triggers."""
    by_scripts = migrated(engine)
    migrations.downgrade(engine, NAMES)
    tables = Tables(NAMES)
    with engine.begin() as connection:
        tables.metadata.create_all(connection)
        run(connection, schema_dialect_for(engine.dialect.name).extras(tables))
        assert structure(connection) == by_scripts


def test_up_down_and_up_again(engine: sa.Engine) -> None:
    """A downgrade leaves only the version table, and the next upgrade makes the same schema again."""
    first = migrated(engine)
    migrations.downgrade(engine, NAMES)
    assert tables_of(engine) == {"taskengine_version"}
    with engine.connect() as connection:
        assert structure(connection) == []
    assert migrated(engine) == first


def test_migrating_again_does_nothing(engine: sa.Engine) -> None:
    """A second call finds the newest revision and leaves rows and schema as they are."""
    head = migrations.head_revision()
    assert migrations.migrate(engine, NAMES) == migrations.Migration(None, head)
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO taskengine_task (type) VALUES ('a')")
    assert migrations.migrate(engine, NAMES) == migrations.Migration(head, head)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM taskengine_task").scalar_one() == 1
        assert migrations.current_revision(connection, NAMES) == head
        assert migrations.schema_faults(connection, NAMES) == []


def test_twenty_processes_may_migrate_at_once(empty_database_url: str, tmp_path: Path) -> None:
    """One of twenty processes migrates, the others wait for it, and all end well."""
    program = """
import os, sys, alembic.command, sqlalchemy as sa
from flask_taskengine.store.migrations import migrate
from flask_taskengine.store.tables import Names
engine = sa.create_engine(sys.argv[1], poolclass=sa.NullPool)
gate, opener = os.pipe()
children = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        os.close(opener)
        os.read(gate, 1)
        os.write(1, f"{migrate(engine, Names()).before}\\n".encode())
        os._exit(0)
    children.append(child)
os.close(opener)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", program, empty_database_url],
        text=True,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.split()) == [*[migrations.head_revision()] * 19, "None"]


@pytest.mark.parametrize("wrote_before", [True, False])
def test_create_all_belongs_to_the_callers_transaction(engine: sa.Engine, wrote_before: bool) -> None:
    """create_all commits nothing: a rollback takes everything away again, the caller's own rows included."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE host (id integer)")
    with engine.connect() as connection:
        if wrote_before:
            connection.exec_driver_sql("INSERT INTO host VALUES (1)")
        migrations.create_all(connection, NAMES)
        assert migrations.current_revision(connection, NAMES) == migrations.head_revision()
        connection.rollback()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM host").scalar_one() == 0
    assert tables_of(engine) == {"host"}


def test_create_all_makes_what_migrate_makes(engine: sa.Engine) -> None:
    """create_all may run at every start of an app, and leaves nothing for a later migrate to do."""
    head = migrations.head_revision()
    for before in (None, head):
        with engine.begin() as connection:
            assert migrations.create_all(connection, NAMES) == migrations.Migration(before, head)
    with engine.connect() as connection:
        created = structure(connection)
    assert migrations.migrate(engine, NAMES) == migrations.Migration(head, head)
    migrations.downgrade(engine, NAMES)
    assert migrated(engine) == created


def test_the_printed_script_makes_the_same_schema(engine: sa.Engine) -> None:
    """The DDL that is printed for a database administrator makes the schema and its version."""
    script = migrations.ddl(NAMES, engine.dialect.name)
    raw = engine.raw_connection()
    driver = raw.driver_connection
    assert driver is not None
    (driver.executescript if engine.dialect.name == "sqlite" else driver.execute)(script)
    raw.close()
    with engine.connect() as connection:
        printed = structure(connection)
        assert migrations.current_revision(connection, NAMES) == migrations.head_revision()
        assert migrations.schema_faults(connection, NAMES) == []
    migrations.downgrade(engine, NAMES)
    assert migrated(engine) == printed


def test_a_row_by_hand_needs_only_its_type(engine: sa.Engine) -> None:
    """Every other column has a default, so that plain SQL can enqueue."""
    migrations.migrate(engine, NAMES)
    tables = Tables(NAMES)
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO taskengine_task (type) VALUES ('a')")
        row = connection.execute(sa.select(tables.task)).mappings().one()
    assert {name: row[name] for name in ("status", "priority", "attempts", "claims", "max_attempts", "payload", "finished_at")} == {
        "status": "PENDING",
        "priority": 0,
        "attempts": 0,
        "claims": 0,
        "max_attempts": None,
        "payload": None,
        "finished_at": None,
    }
    assert row["available_at"] == row["created_at"] == row["updated_at"]


@pytest.mark.parametrize(("status", "finished"), [("PENDING", True), ("RUNNING", True), ("DEAD", False), ("DONE", False), ("DONE", True)])
def test_a_task_has_ended_exactly_when_it_has_a_finished_time(engine: sa.Engine, status: str, finished: bool) -> None:
    """The database refuses a status it does not know, and one that contradicts finished_at."""
    migrations.migrate(engine, NAMES)
    time = "CURRENT_TIMESTAMP" if finished else "NULL"
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO taskengine_task (type, status, finished_at) VALUES ('a', '{status}', {time})")


def test_json_text_is_stored_as_json(engine: sa.Engine) -> None:
    """A finished JSON text arrives as that value, not as a string that holds it."""
    migrations.migrate(engine, NAMES)
    task = Tables(NAMES).task
    with engine.begin() as connection:
        connection.execute(task.insert().values(type="a", payload='{"n": [1, "é"]}'))
        assert connection.execute(sa.select(task.c.payload)).scalar_one() == {"n": [1, "é"]}
        stored = connection.exec_driver_sql("SELECT CAST(payload AS text) FROM taskengine_task").scalar_one()
    assert stored == '{"n": [1, "é"]}'


def test_two_installations_stand_side_by_side(engine: sa.Engine) -> None:
    """Another prefix, and the task table's own name, share a schema with the first installation; one is dropped without the other."""
    other = Names(prefix="other_", task_table="task")
    migrations.migrate(engine, NAMES)
    first = tables_of(engine)
    migrations.migrate(engine, other)
    assert {"task", "other_task_archive", "other_attempt", "other_node", "other_version"} <= tables_of(engine)
    migrations.downgrade(engine, other)
    assert tables_of(engine) == first | {"other_version"}
    with engine.connect() as connection:
        assert migrations.schema_faults(connection, NAMES) == []


def test_a_newer_revision_is_refused(engine: sa.Engine) -> None:
    """A database that a newer version has migrated is left alone, with a sentence that says what to do."""
    migrations.migrate(engine, NAMES)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskengine_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match=r"revision 9999 .* does not know .* install that version here"):
        migrations.migrate(engine, NAMES)
    with pytest.raises(ConfigError, match="9999"), engine.begin() as connection:
        migrations.create_all(connection, NAMES)
    with engine.connect() as connection:
        assert ["9999" in fault for fault in migrations.schema_faults(connection, NAMES)] == [True]


def test_tables_that_lost_their_version_are_adopted(engine: sa.Engine) -> None:
    """A dump may have been restored without the version table: complete tables are taken as they are, with their rows."""
    migrations.migrate(engine, NAMES)
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO taskengine_task (type) VALUES ('a')")
        connection.exec_driver_sql("DROP TABLE taskengine_version")
    head = migrations.head_revision()
    assert migrations.migrate(engine, NAMES) == migrations.Migration(None, head)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM taskengine_task").scalar_one() == 1
        assert migrations.current_revision(connection, NAMES) == head


def test_half_of_the_tables_without_a_version_are_refused(engine: sa.Engine) -> None:
    """Neither adopted nor written over: every fault is listed, and nothing has changed."""
    migrations.migrate(engine, NAMES)
    with engine.begin() as connection:
        for table in ("taskengine_version", "taskengine_node"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql("ALTER TABLE taskengine_task DROP COLUMN result")
    before = tables_of(engine)
    with pytest.raises(ConfigError) as caught:
        migrations.migrate(engine, NAMES)
    assert [fault.split(":")[0] for fault in caught.value.faults[1:]] == [
        "the table taskengine_node is missing",
        "the table taskengine_task lacks the columns result",
    ]
    assert tables_of(engine) == before


def test_a_renamed_task_table_is_told_apart_from_a_new_database(engine: sa.Engine) -> None:
    """A setting changed after the migration is one clear error, not a worker that fails at its first statement."""
    migrations.migrate(engine, NAMES)
    renamed = Names(task_table="task")
    with engine.connect() as connection:
        assert any("the table task is missing" in fault for fault in migrations.schema_faults(connection, renamed))
    with pytest.raises(ConfigError, match="the table task is missing: if TASKENGINE_TASK_TABLE"):
        migrations.migrate(engine, renamed)


def test_what_a_database_lacks_is_said_with_its_remedy(engine: sa.Engine) -> None:
    """An empty database and a lost index are each one sentence for `flask taskengine check`."""
    with engine.connect() as connection:
        assert migrations.schema_faults(connection, NAMES) == [
            "the database has no table taskengine_version: run `flask taskengine migrate`"
        ]
    migrations.migrate(engine, NAMES)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX taskengine_task_ended")
        (fault,) = migrations.schema_faults(connection, NAMES)
    assert fault.startswith("the index taskengine_task_ended of taskengine_task is missing")


def test_a_host_may_call_create_all_from_its_own_migration(engine: sa.Engine, tmp_path: Path) -> None:
    """Alembic's globals belong to the host again afterwards, and everything is in the host's transaction."""
    host = EnvironmentContext(Config(), ScriptDirectory(tmp_path))
    with engine.begin() as connection, host:
        host.configure(connection=connection)
        with Operations.context(host.get_context()):
            migrations.create_all(alembic_op.get_bind(), NAMES)
            alembic_op.create_table("host", sa.Column("id", sa.Integer))
            assert alembic_context.get_context() is host.get_context()
        connection.rollback()
    assert tables_of(engine) == set()


def test_migrating_leaves_the_hosts_logging_alone(engine: sa.Engine) -> None:
    """No handler, level or disabled logger changes."""
    root, other = logging.getLogger(), logging.getLogger("host.of.ours")
    before = (list(root.handlers), root.level, other.disabled, other.level)
    migrations.migrate(engine, NAMES)
    assert (list(root.handlers), root.level, other.disabled, other.level) == before


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_names_that_are_too_long_are_one_clear_error(database: str) -> None:
    """PostgreSQL would cut them off without a word."""
    names = Names(prefix="p" * 60 + "_")
    if database == "sqlite":
        assert "p" * 60 in migrations.ddl(names, database)
    else:
        with pytest.raises(ConfigError, match="shorten TASKENGINE_TABLE_PREFIX or TASKENGINE_TASK_TABLE"):
            migrations.ddl(names, database)


def test_an_unknown_database_is_refused() -> None:
    """The error names those that are supported."""
    with pytest.raises(ConfigError, match="'access' is not supported: use one of postgresql, sqlite"):
        migrations.ddl(NAMES, "access")

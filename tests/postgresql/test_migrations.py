"""What PostgreSQL adds to the schema: schemas, locks, roles, restored dumps, and the triggers that wake workers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from flask_taskengine.domain.errors import ConfigError
from flask_taskengine.store import migrations
from flask_taskengine.store.dialects import postgresql_schema
from flask_taskengine.store.dialects.postgresql_schema import create_wakeups, drop_wakeups
from flask_taskengine.store.dialects.schema import run
from flask_taskengine.store.tables import Names, Tables

from ..support.databases import PostgresqlDatabases
from ..support.postgresql import NoServerError, find_binaries
from ..support.waiting import wait_until

pytestmark = pytest.mark.postgresql
NAMES = Names()
ELSEWHERE = Names(prefix="te_", task_table="te_work", schema="work of 'ours': 1")
LONG = Names(schema="s" * 60)


@pytest.fixture
def engine(empty_postgresql_url: str) -> Iterator[sa.Engine]:
    """Return an engine on a database that has no tables."""
    engine = sa.create_engine(empty_postgresql_url)
    yield engine
    engine.dispose()


@pytest.fixture
def bare_engine(empty_postgresql_url: str) -> Iterator[sa.Engine]:
    """Return an engine whose sessions have an empty search_path."""
    engine = sa.create_engine(empty_postgresql_url, connect_args={"options": "-c search_path="})
    yield engine
    engine.dispose()


Execute = Callable[[str], bool]


@pytest.fixture(params=[NAMES, ELSEWHERE, LONG], ids=["default", "another schema", "long schema"])
def names(request: pytest.FixtureRequest) -> Names:
    """Return the names of an installation."""
    given: Names = request.param
    return given


def connect(engine: sa.Engine, **options: Any) -> psycopg.Connection[Any]:
    """Return a connection of the driver that commits every statement."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(url, autocommit=True, **options)


@pytest.fixture
def wakes(engine: sa.Engine, names: Names) -> Iterator[Execute]:
    """Return a function that runs a statement, in which {task} and {type} stand for tables, and says if it woke a listener."""
    migrations.migrate(engine, names)
    tables = Tables(names)
    quote = engine.dialect.identifier_preparer.format_table
    with closing(connect(engine)) as listener, closing(connect(engine, options="-c search_path=public")) as writer:
        listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(names.channel)))

        def execute(statement: str) -> bool:
            writer.execute(statement.format(task=quote(tables.task), type=quote(tables.type)))
            # A marker on the same channel from the same session arrives after whatever the statement has sent.
            writer.execute("SELECT pg_notify(%s, 'marker')", [names.channel])
            payloads = [note.payload for note in listener.notifies(timeout=10, stop_after=1)]
            while "marker" not in payloads:
                payloads += [note.payload for note in listener.notifies(timeout=10, stop_after=1)]
            assert set(payloads) <= {"", "marker"}
            return "" in payloads

        yield execute


# --- wake-ups --------------------------------------------------------------------------------------------------------


def test_a_new_task_wakes_workers_whether_due_or_not(wakes: Execute) -> None:
    """A row by hand, one for tomorrow and a bulk insert all wake: a sleeping dispatcher must learn of an earlier due time."""
    assert wakes("INSERT INTO {task} (type) VALUES ('a')")
    assert wakes("INSERT INTO {task} (type, available_at) VALUES ('a', now() + interval '1 day')")
    assert wakes("INSERT INTO {task} (type) SELECT 'a' FROM generate_series(1, 1000)")
    assert wakes("INSERT INTO {task} (type, status, finished_at) VALUES ('a', 'DEAD', now()), ('a', 'PENDING', NULL)")


def test_rows_that_nobody_has_to_run_wake_nobody(wakes: Execute) -> None:
    """Ended and running rows, an insert of no row and a duplicate key are silent."""
    assert not wakes("INSERT INTO {task} (type, status, finished_at) VALUES ('a', 'SUCCEEDED', now())")
    assert not wakes("INSERT INTO {task} (type, status) VALUES ('a', 'RUNNING')")
    assert not wakes("INSERT INTO {task} (type) SELECT 'a' WHERE false")
    assert wakes("INSERT INTO {task} (type, idempotency_key) VALUES ('a', 'k')")
    assert not wakes("INSERT INTO {task} (type, idempotency_key) VALUES ('a', 'k') ON CONFLICT DO NOTHING")


def test_what_becomes_pending_or_due_at_another_time_wakes(wakes: Execute) -> None:
    """A retry, a release and a moved time wake; a claim, a completion and other changes are silent."""
    wakes("INSERT INTO {task} (type) VALUES ('a')")
    assert not wakes("UPDATE {task} SET priority = 5")
    assert not wakes("UPDATE {task} SET available_at = available_at")
    assert wakes("UPDATE {task} SET available_at = now() - interval '1 hour'")
    assert not wakes("UPDATE {task} SET status = 'RUNNING', claims = 1, attempts = 1")
    assert not wakes("UPDATE {task} SET cancel_requested_at = now(), available_at = now()")
    assert wakes("UPDATE {task} SET status = 'PENDING', available_at = now() + interval '1 hour'")
    assert not wakes("UPDATE {task} SET status = 'DEAD', finished_at = now()")
    assert wakes("UPDATE {task} SET status = 'PENDING', finished_at = NULL")
    assert not wakes("DELETE FROM {task}")


def test_resuming_a_type_wakes(wakes: Execute) -> None:
    """However a pause is lifted, in a row or by deleting it, tasks that waited for it start at once."""
    assert wakes("INSERT INTO {type} (type, paused_at) VALUES ('a', now())")
    assert wakes("UPDATE {type} SET paused_at = NULL WHERE type = 'a'")
    assert wakes("DELETE FROM {type}")


def test_the_triggers_need_no_search_path_and_no_right_but_the_insert(engine: sa.Engine, names: Names) -> None:
    """A session with an empty search_path and a role that may only insert do not fail because of the wake-up."""
    migrations.migrate(engine, names)
    task = engine.dialect.identifier_preparer.format_table(Tables(names).task)
    role = f"te_writer_{engine.url.database}"
    with closing(connect(engine)) as owner:
        owner.execute(f'CREATE ROLE "{role}"')
        try:
            if names.schema is not None:
                owner.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(names.schema), sql.Identifier(role)))
            owner.execute(f'GRANT INSERT ON {task if names.schema else "public." + task} TO "{role}"')
            with closing(connect(engine, options="-c search_path=")) as writer:
                writer.execute(f'SET ROLE "{role}"')
                writer.execute(f"INSERT INTO {task if names.schema else 'public.' + task} (type) VALUES ('a')")
        finally:
            owner.execute(f'DROP OWNED BY "{role}"')
            owner.execute(f'DROP ROLE "{role}"')


def test_an_operator_of_a_stranger_is_not_called(engine: sa.Engine) -> None:
    """The trigger compares with PostgreSQL's own operator, whatever stands in the inserting session's search_path."""
    migrations.migrate(engine, NAMES)
    with closing(connect(engine)) as writer:
        writer.execute("CREATE SCHEMA evil")
        writer.execute("CREATE FUNCTION evil.eq(varchar, varchar) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''called''; END'")
        writer.execute("CREATE OPERATOR evil.= (FUNCTION = evil.eq, LEFTARG = varchar, RIGHTARG = varchar)")
        writer.execute("SET search_path = evil, pg_catalog, public")
        writer.execute("INSERT INTO taskengine_task (type) VALUES ('a')")


# --- where it stands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [ELSEWHERE, LONG], indirect=True, ids=["another schema", "long schema"])
def test_up_down_up_in_another_schema_without_a_search_path(bare_engine: sa.Engine, names: Names) -> None:
    """The schema is created, nothing lands outside it, a downgrade empties it, and up works again."""
    names_of = sa.text(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND c.relkind = 'r'"
        " UNION SELECT n.nspname, p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
    )
    found = []
    for _ in range(2):
        migrations.migrate(bare_engine, names)
        with bare_engine.connect() as connection:
            found.append(set(connection.execute(names_of)))
            assert migrations.schema_faults(connection, names) == []
        migrations.downgrade(bare_engine, names)
        with bare_engine.connect() as connection:
            assert set(connection.execute(names_of)) == {(names.schema, names.version_table)}
    assert found[0] == found[1]
    assert {schema for schema, _ in found[0]} == {names.schema}


def test_everything_carries_the_prefix_or_the_tables_name(engine: sa.Engine, names: Names) -> None:
    """Two installations in one schema can not collide: not in an index, a constraint, a trigger, a function or a sequence."""
    migrations.migrate(engine, names)
    query = """
        SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(:schema)
        UNION ALL SELECT conname FROM pg_constraint WHERE connamespace = to_regnamespace(:schema)
        UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace(:schema)"""
    schema = "public" if names.schema is None else engine.dialect.identifier_preparer.quote(names.schema)
    with engine.connect() as connection:
        found = set(connection.execute(sa.text(query), {"schema": schema}).scalars())
    assert len(found) > 20
    assert {name for name in found if not name.startswith((names.prefix, names.task))} == set()


@pytest.mark.parametrize("names", [NAMES, ELSEWHERE, LONG, Names(prefix="a" * 46 + "_", schema="b" * 63)])
def test_the_channel_fits_and_is_the_installations_own(names: Names) -> None:
    """A long schema is hashed, since PostgreSQL refuses channels above 63 bytes; another schema has another channel."""
    assert len(names.channel.encode()) <= 63
    assert names.channel != Names(names.prefix, names.task_table, "another" + (names.schema or "")).channel


def test_a_role_without_the_right_to_create_schemas_may_migrate_into_one(engine: sa.Engine) -> None:
    """The administrator has created the schema; without it the database says what is missing."""
    names = Names(schema="ours")
    role = f"te_limited_{engine.url.database}"
    with closing(connect(engine)) as admin:
        admin.execute(f'CREATE ROLE "{role}" LOGIN')
        limited = sa.create_engine(engine.url.set(username=role))
        try:
            with pytest.raises(sa.exc.ProgrammingError, match="permission denied for database"):
                migrations.migrate(limited, names)
            admin.execute(f'CREATE SCHEMA ours AUTHORIZATION "{role}"')
            assert migrations.migrate(limited, names).before is None
        finally:
            limited.dispose()
            admin.execute(f'DROP OWNED BY "{role}" CASCADE')
            admin.execute(f'DROP ROLE "{role}"')


def test_the_tables_have_settings_for_a_churning_table(engine: sa.Engine) -> None:
    """Autovacuum comes by a number of dead rows, not by a share of the table."""
    migrations.migrate(engine, NAMES)
    with engine.connect() as connection:
        options = connection.exec_driver_sql("SELECT reloptions FROM pg_class WHERE relname = 'taskengine_task'").scalar_one()
    assert {"fillfactor=80", "autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=2000"} <= set(options)


# --- the transaction -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_hosts_isolation_level_does_not_matter(engine: sa.Engine, level: str) -> None:
    """What waited for the lock sees what its last holder has committed."""
    hosts = sa.create_engine(engine.url, isolation_level=level)
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor() as threads, engine.connect() as holder, engine.connect() as watcher:
        migrations.create_all(holder, NAMES)
        done = threads.submit(migrations.migrate, hosts, NAMES)
        wait_until(lambda: watcher.exec_driver_sql(waits).scalar_one() == 1, what="the migration to wait for the lock")
        holder.commit()
        assert done.result(timeout=10).before == migrations.head_revision()
    hosts.dispose()


def test_a_failed_migration_leaves_nothing(engine: sa.Engine) -> None:
    """Half a schema is never committed: what stands in the way is an error, and the tables made before it are gone again."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TYPE taskengine_lease AS ENUM ()")
    with pytest.raises(sa.exc.ProgrammingError, match="taskengine_lease"):
        migrations.migrate(engine, NAMES)
    assert sa.inspect(engine).get_table_names() == []


def test_a_statement_timeout_of_the_role_does_not_end_the_wait(engine: sa.Engine) -> None:
    """Waiting for another process that migrates is no statement that hangs."""
    hasty = sa.create_engine(engine.url, connect_args={"options": "-c statement_timeout=200"})
    waited = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND now() - query_start > interval '400 ms'"
    with ThreadPoolExecutor() as threads, engine.connect() as holder, connect(engine) as watcher:
        migrations.create_all(holder, NAMES)
        done = threads.submit(migrations.migrate, hasty, NAMES)
        wait_until(lambda: done.done() or watcher.execute(waited).fetchone() == (1,), what="the migration to outlive its time-out")
        holder.commit()
        assert done.result(timeout=10).before == migrations.head_revision()
    hasty.dispose()


def test_a_table_in_use_does_not_hold_everybody_up(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair that waits for a long transaction gives up, says why, and changes nothing."""
    monkeypatch.setattr(postgresql_schema, "_TABLE_WAIT", 1)
    migrations.migrate(engine, NAMES)
    with engine.connect() as handler:
        handler.exec_driver_sql("DROP TRIGGER taskengine_inserted ON taskengine_task")
        handler.commit()
        handler.exec_driver_sql("INSERT INTO taskengine_task (type) VALUES ('a')")
        with pytest.raises(ConfigError, match=r"in use by a transaction .* stop the workers"):
            migrations.migrate(engine, NAMES)
    assert len(migrations.migrate(engine, NAMES).repairs) == 1


# --- repairs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TRIGGER taskengine_inserted ON taskengine_task",
        "ALTER TABLE taskengine_task DISABLE TRIGGER ALL",
        "ALTER TABLE taskengine_type DISABLE TRIGGER taskengine_resumed",
        "DROP FUNCTION taskengine_wake() CASCADE",
        """CREATE OR REPLACE TRIGGER taskengine_updated AFTER UPDATE ON taskengine_task
           FOR EACH ROW EXECUTE FUNCTION taskengine_wake('another')""",
    ],
)
def test_damaged_triggers_are_found_and_mended(engine: sa.Engine, damage: str) -> None:
    """A trigger that is gone, switched off or calls another channel is a fault for `check`, and migrate puts it right."""
    migrations.migrate(engine, NAMES)
    with engine.begin() as connection:
        connection.exec_driver_sql(damage)
        (fault,) = migrations.schema_faults(connection, NAMES)
    assert fault.startswith("the triggers that wake workers are missing or switched off: taskengine_")
    assert fault.endswith("run `flask taskengine migrate`")
    assert migrations.migrate(engine, NAMES).repairs == (fault.rsplit(":", 1)[0],)
    with engine.connect() as connection:
        assert migrations.schema_faults(connection, NAMES) == []
    assert migrations.migrate(engine, NAMES).repairs == ()


def leave_invalid(engine: sa.Engine, *indexes: str) -> None:
    """Leave invalid indexes of these names behind, as a failed REINDEX CONCURRENTLY does."""
    with closing(connect(engine)) as owner:
        owner.execute("INSERT INTO taskengine_task (type) VALUES ('twice'), ('twice')")
        for index in indexes:
            with pytest.raises(psycopg.errors.UniqueViolation):
                owner.execute(f"CREATE UNIQUE INDEX CONCURRENTLY {index} ON taskengine_task (type)")


def test_what_a_failed_reindex_leaves_is_removed(engine: sa.Engine) -> None:
    """Invalid left-overs slow every write down: also the numbered ones are found and dropped, and nothing else is."""
    migrations.migrate(engine, NAMES)
    leave_invalid(engine, "hosts_own", "taskengine_task_live_ccnew", "taskengine_task_live_ccnew1", "taskengine_task_key_ccold")
    with engine.connect() as connection:
        assert len(migrations.schema_faults(connection, NAMES)) == 3
    assert len(migrations.migrate(engine, NAMES).repairs) == 3
    with engine.connect() as connection:
        left = {index["name"] for index in sa.inspect(connection).get_indexes("taskengine_task")}
    assert left == {"taskengine_task_live", "taskengine_task_ended", "taskengine_task_key", "hosts_own"}


def test_a_reindex_at_work_is_left_alone(engine: sa.Engine) -> None:
    """Its new index looks like a left-over, but the table carries its lock."""
    migrations.migrate(engine, NAMES)
    leave_invalid(engine, "taskengine_task_live_ccnew")
    with engine.connect() as reindexing:
        reindexing.exec_driver_sql("LOCK TABLE taskengine_task IN SHARE UPDATE EXCLUSIVE MODE")
        assert migrations.migrate(engine, NAMES).repairs == ()
    assert len(migrations.migrate(engine, NAMES).repairs) == 1


def test_the_wake_ups_can_be_removed_and_made_again(engine: sa.Engine, names: Names) -> None:
    """Both are safe to run twice."""
    migrations.migrate(engine, names)
    tables = Tables(names)
    with engine.begin() as connection:
        for statements in (drop_wakeups(tables), drop_wakeups(tables), create_wakeups(tables), create_wakeups(tables)):
            run(connection, statements)
        assert migrations.schema_faults(connection, names) == []


@pytest.mark.parametrize("names", [NAMES, ELSEWHERE], indirect=True, ids=["default", "another schema"])
def test_a_restored_dump_needs_no_migration(
    engine: sa.Engine, names: Names, postgresql_databases: PostgresqlDatabases, tmp_path: Path
) -> None:
    """The revision stands in a table: a dump without comments and owners is complete, with its rows, ids and triggers."""
    migrations.migrate(engine, names)
    task = engine.dialect.identifier_preparer.format_table(Tables(names).task)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO {task} (type) VALUES ('a')")
    dump = tmp_path / "dump"
    restored = sa.make_url(postgresql_databases.create_empty())
    try:
        _client("pg_dump", "--format=custom", "--no-comments", "--no-owner", f"--file={dump}", "--dbname", _libpq(engine.url))
        _client("pg_restore", "--exit-on-error", "--no-owner", "--dbname", _libpq(restored), str(dump))
        copy = sa.create_engine(restored)
        head = migrations.head_revision()
        with copy.begin() as connection:
            assert migrations.schema_faults(connection, names) == []
            assert connection.exec_driver_sql(f"INSERT INTO {task} (type) VALUES ('b') RETURNING id").scalar_one() == 2
        assert migrations.migrate(copy, names) == migrations.Migration(head, head)
        copy.dispose()
    finally:
        postgresql_databases.drop(str(restored))


def _client(program: str, *arguments: str) -> None:
    try:
        found: str | None = shutil.which(program, path=str(find_binaries()))
    except NoServerError:
        found = None
    found = found or shutil.which(program)
    assert found is not None, f"{program} is not installed: it belongs to PostgreSQL's client programs"
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _libpq(url: sa.URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)

"""A host's autogenerate does not see the engine's tables, and sees everything else."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from flask_taskengine.store import autogenerate, migrations
from flask_taskengine.store.tables import Names, Tables

NAMES = Names()
ROOT = Path(migrations.__file__).parents[2]

HOST = """
import os
from flask import Flask
from flask_migrate import Migrate
from flask_sqlalchemy import SQLAlchemy
from flask_taskengine.store.migrations import hide_from_autogenerate
from flask_taskengine.store.tables import Names

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["HOST_DATABASE"]
db = SQLAlchemy(app)
Migrate(app, db)
hide_from_autogenerate(Names())


class Customer(db.Model):
    id = db.Column(db.Integer, primary_key=True)
"""


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin every test with no installation known, as a new process does."""
    monkeypatch.setattr(autogenerate, "_hidden", set())


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[sa.Engine]:
    """Return an engine on a database that has no tables, of either kind."""
    yield from connected(empty_database_url)


@pytest.fixture
def postgresql_engine(empty_postgresql_url: str) -> Iterator[sa.Engine]:
    """Return an engine on a PostgreSQL database that has no tables."""
    yield from connected(empty_postgresql_url)


@pytest.fixture
def sqlite_engine(empty_sqlite_url: str) -> Iterator[sa.Engine]:
    """Return an engine on a SQLite file that has no tables."""
    yield from connected(empty_sqlite_url)


def connected(url: str) -> Iterator[sa.Engine]:
    """Yield an engine, and close its connections afterwards."""
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def python(folder: Path, *arguments: str, **environment: str) -> str:
    """Run Python in a folder and return what it printed."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def proposals(engine: sa.Engine, *tables: sa.Table, **options: Any) -> list[tuple[str, str | None, str]]:
    """Return what a host with these tables is told to do: a verb, and the schema and name of a table."""
    metadata = sa.MetaData()
    for table in tables:
        table.to_metadata(metadata)
    with engine.connect() as connection:
        changes = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    return sorted(((change[0], change[1].schema, change[1].name) for change in changes if change[0].endswith("_table")), key=str)


def test_a_flask_migrate_host_and_the_engine_leave_each_other_alone(engine: sa.Engine, tmp_path: Path) -> None:
    """The host's first revision holds its own table only, its check is clean, and our migrations do not touch its tables."""
    migrations.migrate(engine, NAMES)
    (tmp_path / "host.py").write_text(HOST)
    url = engine.url.render_as_string(hide_password=False)
    init, migrate, upgrade, check = (
        python(tmp_path, "-m", "flask", "--app", "host", "db", verb, HOST_DATABASE=url) for verb in ("init", "migrate", "upgrade", "check")
    )
    assert "Detected removed" not in init + migrate + upgrade
    assert "No new upgrade operations detected" in check
    (revision,) = (tmp_path / "migrations" / "versions").glob("*.py")
    assert "create_table('customer'" in revision.read_text()
    assert "taskengine" not in revision.read_text()
    for step in (migrations.migrate, migrations.downgrade, migrations.migrate):
        step(engine, NAMES)
        assert {"customer", "alembic_version"} <= set(sa.inspect(engine).get_table_names())
    with engine.connect() as connection:
        assert migrations.schema_faults(connection, NAMES) == []


def test_only_the_engines_tables_are_hidden(engine: sa.Engine) -> None:
    """A host's tables are seen whatever they are called: `task`, or something that begins with our prefix."""
    migrations.migrate(engine, NAMES)
    with engine.begin() as connection:
        for name in ("task", "taskengine_report", "node"):
            connection.exec_driver_sql(f"CREATE TABLE {name} (id integer)")
    autogenerate.hide_from_autogenerate(NAMES)
    expected = [("remove_table", None, name) for name in ("node", "task", "taskengine_report")]
    assert proposals(engine) == expected


def test_several_installations_are_hidden(engine: sa.Engine) -> None:
    """Every engine of the process tells its own names; one that has told none is seen."""
    for names in (NAMES, Names(prefix="b_", task_table="task"), Names(prefix="c_")):
        migrations.migrate(engine, names)
    autogenerate.hide_from_autogenerate(NAMES)
    autogenerate.hide_from_autogenerate(Names(prefix="b_", task_table="task"))
    seen = proposals(engine)
    assert len(seen) == 8
    assert {name[:2] for _, _, name in seen} == {"c_"}


def test_tables_in_the_hosts_metadata_are_hidden_too(engine: sa.Engine) -> None:
    """A host that has copied our tables into its metadata, to join with them, is told neither to create nor to change them."""
    autogenerate.hide_from_autogenerate(NAMES)
    own = Tables(NAMES).metadata.sorted_tables
    assert proposals(engine, *own) == []
    migrations.migrate(engine, NAMES)
    assert proposals(engine, *own) == []


@pytest.mark.postgresql
def test_a_table_of_the_same_name_in_another_schema_is_the_hosts(postgresql_engine: sa.Engine) -> None:
    """With the task table `task` in schema `ours`, the host's `task` in public and in a third schema is seen."""
    engine = postgresql_engine
    names = Names(task_table="task", schema="ours")
    migrations.migrate(engine, names)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE task (id integer); CREATE SCHEMA third; CREATE TABLE third.task (id integer)")
    autogenerate.hide_from_autogenerate(names)
    assert proposals(engine) == [("remove_table", None, "task")]
    everywhere = proposals(engine, include_schemas=True)
    assert everywhere == [("remove_table", "third", "task"), ("remove_table", None, "task")]


@pytest.mark.postgresql
@pytest.mark.parametrize("schema", ["public", None])
def test_the_default_schema_may_be_named(postgresql_engine: sa.Engine, schema: str | None) -> None:
    """Alembic calls the default schema None, a setting may call it public: both are the same tables."""
    engine = postgresql_engine
    migrations.migrate(engine, Names(schema=schema))
    autogenerate.hide_from_autogenerate(Names(schema="public"))
    assert proposals(engine) == proposals(engine, include_schemas=True) == []
    autogenerate.hide_from_autogenerate(Names(schema=None))
    assert proposals(engine) == proposals(engine, include_schemas=True) == []


@pytest.mark.sqlite
def test_a_host_may_pass_the_filter_itself(sqlite_engine: sa.Engine) -> None:
    """A host that chooses its plugins leaves ours out; include_object does the same work then."""
    engine = sqlite_engine
    migrations.migrate(engine, NAMES)
    autogenerate.hide_from_autogenerate(NAMES)
    chosen = ["alembic.autogenerate.schemas", "alembic.autogenerate.tables"]
    assert len(proposals(engine, autogenerate_plugins=chosen)) == 8
    assert proposals(engine, autogenerate_plugins=chosen, include_object=autogenerate.include_object) == []


def test_hiding_imports_no_alembic_until_the_host_does(tmp_path: Path) -> None:
    """A web process pays nothing; once the host imports Alembic, in whatever order, the plugin is there."""
    program = (
        "import sys\n"
        "from flask_taskengine.store import migrations\n"
        "from flask_taskengine.store.tables import Names\n"
        "finders = list(sys.meta_path)\n"
        "for _ in range(3): migrations.hide_from_autogenerate(Names())\n"
        "assert not [name for name in sys.modules if name.startswith('alembic')]\n"
        "import alembic.autogenerate\n"
        "from alembic.runtime.plugins import _all_plugins\n"
        "assert 'alembic.autogenerate.taskengine' in _all_plugins\n"
        "assert sys.meta_path == finders\n"
        "assert type(alembic.__loader__).__name__ == type(alembic.__spec__.loader).__name__ == 'SourceFileLoader'\n"
        "migrations.hide_from_autogenerate(Names(prefix='b_'))\n"
        "print('well')\n"
    )
    assert python(tmp_path, "-W", "error", "-c", program) == "well\n"


def test_an_alembic_that_can_not_be_told_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The host learns what to do instead, before a revision drops its tasks."""
    other = SimpleNamespace(dialect=SimpleNamespace(default_schema_name="main"))
    with caplog.at_level(logging.WARNING, "flask_taskengine.migrations"):
        autogenerate._hide(other, None, None)
    assert "include_object" in caplog.text


def test_the_scripts_are_found_whatever_the_working_directory_holds(tmp_path: Path) -> None:
    """A host's own `migrations` folder, even as an importable package, is not taken for ours."""
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "__init__.py").write_text("raise SystemExit('the wrong folder')")
    (tmp_path / "migrations" / "env.py").write_text("raise SystemExit('the wrong folder')")
    program = "from flask_taskengine.store import migrations; print(migrations.head_revision())"
    assert python(tmp_path, "-c", program) == f"{migrations.head_revision()}\n"

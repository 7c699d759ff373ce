"""Brings the engine's tables, indexes and triggers into a database, and knows which revision stands there.

Alembic does the work, with scripts, a version table and a connection of our own; the host's Alembic, if it has one, takes no part.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import sqlalchemy as sa

from ..domain.errors import ConfigError
from .autogenerate import hide_from_autogenerate, include_object
from .dialects.schema import Repair, run, schema_dialect_for
from .inspection import missing_indexes, missing_tables
from .scripts import head_revision, is_known, run_alembic
from .tables import Names, Tables

__all__ = [
    "Migration",
    "create_all",
    "current_revision",
    "ddl",
    "downgrade",
    "head_revision",
    "hide_from_autogenerate",
    "include_object",
    "migrate",
    "schema_faults",
]


@dataclass(frozen=True, slots=True)
class Migration:
    """What a call has done."""

    before: str | None
    """The revision that was found; ``None`` in a database without the engine's tables."""
    after: str
    repairs: tuple[str, ...] = ()
    """What was damaged beside the tables and has been mended."""


# --- the verbs -------------------------------------------------------------------------------------------------------


def migrate(engine: sa.Engine, names: Names) -> Migration:
    """Bring the schema to the newest revision, in one transaction of its own, and commit it.

    May run in any number of processes at once: one migrates, the others wait for it and find nothing to do.

    Raises:
        ConfigError: the database is not supported, stands at a revision that this version does not know, or has lost tables.
    """
    with engine.connect() as connection:
        if _is_complete(connection, names):
            head = head_revision()
            return Migration(head, head)
    with schema_dialect_for(engine.dialect.name).transaction(engine, names) as connection:
        return _upgrade(connection, names)


def create_all(connection: sa.Connection, names: Names) -> Migration:
    """Do what ``migrate`` does, in the caller's transaction; commits nothing. Other processes that do the same wait for its end.

    Raises:
        ConfigError: as ``migrate``.
    """
    if _is_complete(connection, names):
        head = head_revision()
        return Migration(head, head)
    schema_dialect_for(connection.dialect.name).lock(connection, names)
    return _upgrade(connection, names)


def downgrade(engine: sa.Engine, names: Names, revision: str = "base") -> None:
    """Take the schema back to an older revision, in one transaction of its own, and commit it; ``base`` drops every task.

    A schema that was created along the way stays: other things may stand in it.
    """
    with schema_dialect_for(engine.dialect.name).transaction(engine, names) as connection:
        _require_known(current_revision(connection, names), names)
        run_alembic("downgrade", revision, names=names, connection=connection)


def ddl(names: Names, database: str) -> str:
    """Return the whole schema as a script for ``postgresql`` or ``sqlite``, without connecting to a database."""
    preamble = schema_dialect_for(database).preamble(names)
    buffer = io.StringIO()
    buffer.writelines(f"{statement};\n\n" for statement in preamble)
    run_alembic("upgrade", "head", sql=True, buffer=buffer, names=names, database=database)
    return buffer.getvalue()


# --- what stands in the database -------------------------------------------------------------------------------------


def current_revision(connection: sa.Connection, names: Names) -> str | None:
    """Return the revision that the database stands at; ``None`` before the first migration. Writes nothing."""
    if not sa.inspect(connection).has_table(names.version_table, schema=names.schema):
        return None
    revision: str | None = connection.execute(sa.select(_version(names).c.version_num)).scalar()
    return revision


def schema_faults(connection: sa.Connection, names: Names) -> list[str]:
    """Return what is wrong with the schema, one sentence each, with its remedy; empty when all is well. Writes nothing."""
    revision, head = current_revision(connection, names), head_revision()
    if revision is None:
        return [f"the database has no table {names.version_table}: run `flask taskengine migrate`"]
    if not is_known(revision):
        return [_unknown(revision, names)]
    if revision != head:
        return [f"the database is at revision {revision}, this version needs {head}: run `flask taskengine migrate`"]
    tables = Tables(names)
    repairs = [f"{repair.fault}: run `flask taskengine migrate`" for repair in _repairs(connection, tables)]
    return [*missing_tables(connection, tables), *missing_indexes(connection, tables), *repairs]


def _is_complete(connection: sa.Connection, names: Names) -> bool:
    if current_revision(connection, names) != head_revision():
        return False
    tables = Tables(names)
    return not missing_tables(connection, tables) and not _repairs(connection, tables)


def _repairs(connection: sa.Connection, tables: Tables) -> list[Repair]:
    return list(schema_dialect_for(connection.dialect.name).repairs(connection, tables))


# --- the upgrade -----------------------------------------------------------------------------------------------------


def _upgrade(connection: sa.Connection, names: Names) -> Migration:
    """Do the work on a connection that holds the lock."""
    schema_dialect_for(connection.dialect.name).ensure_schema(connection, names)
    tables = Tables(names)
    before = current_revision(connection, names)
    _require_known(before, names)
    if before is None and _adoptable(connection, tables):
        run_alembic("stamp", "head", names=names, connection=connection)
    else:
        run_alembic("upgrade", "head", names=names, connection=connection)
    if faults := missing_tables(connection, tables):
        raise ConfigError(faults)
    repairs = _repairs(connection, tables)
    for repair in repairs:
        run(connection, repair.statements)
    return Migration(before, head_revision(), tuple(repair.fault for repair in repairs))


def _adoptable(connection: sa.Connection, tables: Tables) -> bool:
    """Whether the tables are here, complete, and only their version is not: a dump may have been restored without it.

    Raises:
        ConfigError: some of the tables are here.
    """
    inspector = sa.inspect(connection)
    present = [table.name for table in tables.metadata.sorted_tables if inspector.has_table(table.name, schema=table.schema)]
    if not present:
        return False
    if faults := [*missing_tables(connection, tables), *missing_indexes(connection, tables)]:
        version = tables.names.version_table
        cause = f"{', '.join(present)} exist, but {version} does not say their revision and they are not complete"
        raise ConfigError([f"{cause}: restore {version}, or drop these tables and run `flask taskengine migrate` again", *faults])
    return True


def _require_known(revision: str | None, names: Names) -> None:
    if revision is not None and not is_known(revision):
        raise ConfigError(_unknown(revision, names))


def _unknown(revision: str, names: Names) -> str:
    return (
        f"the database is at revision {revision} ({names.version_table}), which this version of Flask-TaskEngine does not know"
        f" (it knows up to {head_revision()}): a newer version has migrated it, so install that version here"
    )


def _version(names: Names) -> sa.Table:
    return sa.Table(names.version_table, sa.MetaData(schema=names.schema), sa.Column("version_num", sa.String(32)))

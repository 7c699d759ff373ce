"""How PostgreSQL writes the schema, and the triggers with which it wakes sleeping workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import sqlalchemy as sa

from ...domain.errors import ConfigError
from ..tables import Names, Tables
from .schema import Repair, SchemaDialect, run

_LOCK_NOT_AVAILABLE = "55P03"
_TABLE_WAIT = 10
"""Seconds."""


class PostgreSQLSchema(SchemaDialect):
    """PostgreSQL 14 and later."""

    @contextmanager
    def transaction(self, engine: sa.Engine, names: Names) -> Iterator[sa.Connection]:
        # READ COMMITTED: what waits for the lock must then see what its last holder has committed.
        with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection, connection.begin():
            # The wait for the other processes is no statement that hangs.
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            self.lock(connection, names)
            # But whoever waits for a table makes everybody wait who comes after.
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_TABLE_WAIT}s'")
            with _table_wait_explained():
                yield connection

    def lock(self, connection: sa.Connection, names: Names) -> None:
        _advisory_lock(connection, names.schema or "", names.prefix)

    def ensure_schema(self, connection: sa.Connection, names: Names) -> None:
        # Looked for first, since CREATE SCHEMA IF NOT EXISTS asks for a right that the owner of an existing schema may lack.
        exists = sa.text("SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = :name)")
        if names.schema is not None and not connection.execute(exists, {"name": names.schema}).scalar_one():
            # Another prefix may be creating the same schema, and IF NOT EXISTS fails when two do so at once.
            _advisory_lock(connection, names.schema)
            run(connection, self.preamble(names))

    def preamble(self, names: Names) -> Sequence[str]:
        return () if names.schema is None else (f"CREATE SCHEMA IF NOT EXISTS {_quote(names.schema)}",)

    def extras(self, tables: Tables) -> Sequence[str]:
        return [_STORAGE.format(task=_PREPARER.format_table(tables.task)), *create_wakeups(tables)]

    def repairs(self, connection: sa.Connection, tables: Tables) -> Sequence[Repair]:
        return [*_lost_wakeups(connection, tables), *_leftover_indexes(connection, tables)]


def create_wakeups(tables: Tables) -> list[str]:
    """Return the statements that create the triggers which wake workers; they may be run again."""
    task, kind = _PREPARER.format_table(tables.task), _PREPARER.format_table(tables.type)
    inserted, updated, resumed = (_quote(name) for name in _triggers(tables.names))
    wake, wake_pending = _functions(tables.names)
    channel = _literal(tables.names.channel)
    return [
        _FUNCTION.format(name=wake, body=_WAKE),
        _FUNCTION.format(name=wake_pending, body=_WAKE_PENDING),
        _ON_INSERT.format(trigger=inserted, task=task, function=wake_pending, channel=channel),
        _ON_UPDATE.format(trigger=updated, task=task, function=wake, channel=channel),
        _ON_RESUME.format(trigger=resumed, type=kind, function=wake, channel=channel),
    ]


def drop_wakeups(tables: Tables) -> list[str]:
    """Return the statements that remove the triggers which wake workers, as far as they exist."""
    task, kind = _PREPARER.format_table(tables.task), _PREPARER.format_table(tables.type)
    inserted, updated, resumed = (_quote(name) for name in _triggers(tables.names))
    return [
        f"DROP TRIGGER IF EXISTS {inserted} ON {task}",
        f"DROP TRIGGER IF EXISTS {updated} ON {task}",
        f"DROP TRIGGER IF EXISTS {resumed} ON {kind}",
        *(f"DROP FUNCTION IF EXISTS {function}()" for function in _functions(tables.names)),
    ]


def _lost_wakeups(connection: sa.Connection, tables: Tables) -> Iterator[Repair]:
    """Yield the triggers that are gone, switched off, or call another channel: a restored or renamed schema may have them so."""
    found = sa.text(
        "SELECT tgname FROM pg_catalog.pg_trigger WHERE tgrelid IN (to_regclass(:task), to_regclass(:kind)) AND NOT tgisinternal"
        " AND tgenabled IN ('O', 'A') AND tgargs = convert_to(:channel, getdatabaseencoding()) || '\\x00'::bytea"
    )
    names = {"task": _PREPARER.format_table(tables.task), "kind": _PREPARER.format_table(tables.type), "channel": tables.names.channel}
    working = set(connection.execute(found, names).scalars())
    if lost := [name for name in _triggers(tables.names) if name not in working]:
        fault = f"the triggers that wake workers are missing or switched off: {', '.join(lost)}"
        yield Repair(fault, tuple(create_wakeups(tables)))


def _leftover_indexes(connection: sa.Connection, tables: Tables) -> Iterator[Repair]:
    """Yield what a failed REINDEX CONCURRENTLY has left, unless one is at work: that holds this lock on the table throughout."""
    found = sa.text(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE i.indrelid = to_regclass(:task) AND NOT i.indisvalid AND c.relname ~ '_cc(new|old)[0-9]*$'"
        " AND NOT EXISTS (SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database"
        " WHERE l.relation = i.indrelid AND d.datname = current_database() AND l.mode = 'ShareUpdateExclusiveLock')"
    )
    for schema, name in connection.execute(found, {"task": _PREPARER.format_table(tables.task)}):
        statement = f"DROP INDEX IF EXISTS {_quote(schema)}.{_quote(name)}"
        yield Repair(f"the index {name} is left over from a REINDEX CONCURRENTLY that failed", (statement,))


@contextmanager
def _table_wait_explained() -> Iterator[None]:
    try:
        yield
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        cause = f"a table of the engine is in use by a transaction that has been open for more than {_TABLE_WAIT} s"
        raise ConfigError(f"{cause}; nothing was changed: stop the workers, or try again when that transaction has ended") from error


def _advisory_lock(connection: sa.Connection, *what: str) -> None:
    digest = blake2b("\0".join(("migrate", *what)).encode(), digest_size=8).digest()
    connection.execute(sa.text("SELECT pg_catalog.pg_advisory_xact_lock(:key)"), {"key": int.from_bytes(digest, "big", signed=True)})


def _triggers(names: Names) -> tuple[str, str, str]:
    return f"{names.prefix}inserted", f"{names.prefix}updated", f"{names.prefix}resumed"


def _functions(names: Names) -> tuple[str, str]:
    schema = "" if names.schema is None else f"{_quote(names.schema)}."
    return schema + _quote(f"{names.prefix}wake"), schema + _quote(f"{names.prefix}wake_pending")


def _quote(name: str) -> str:
    return _PREPARER.quote(name)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_PREPARER = sa.make_url("postgresql+psycopg://").get_dialect()().identifier_preparer

# Every task leaves two dead rows behind, and PostgreSQL's default waits until a fifth of the table is dead.
_STORAGE = """\
ALTER TABLE {task} SET (
  fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_insert_scale_factor = 0,
  autovacuum_vacuum_insert_threshold = 20000,
  autovacuum_analyze_scale_factor = 0,
  autovacuum_analyze_threshold = 5000,
  autovacuum_vacuum_cost_delay = 1)"""

_FUNCTION = """\
CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $wake$
{body}
$wake$"""

# Every name is qualified, so that the functions mean the same whatever search_path the inserting session has.
_WAKE = """\
BEGIN
  PERFORM pg_catalog.pg_notify(TG_ARGV[0], '');
  RETURN NULL;
END"""

_WAKE_PENDING = """\
BEGIN
  IF EXISTS (SELECT FROM inserted WHERE status OPERATOR(pg_catalog.=) 'PENDING') THEN
    PERFORM pg_catalog.pg_notify(TG_ARGV[0], '');
  END IF;
  RETURN NULL;
END"""

_ON_INSERT = """\
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {task} REFERENCING NEW TABLE AS inserted
FOR EACH STATEMENT EXECUTE FUNCTION {function}({channel})"""

_ON_UPDATE = """\
CREATE OR REPLACE TRIGGER {trigger} AFTER UPDATE ON {task} FOR EACH ROW
WHEN (NEW.status = 'PENDING' AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.available_at IS DISTINCT FROM NEW.available_at))
EXECUTE FUNCTION {function}({channel})"""

_ON_RESUME = """\
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT OR UPDATE OR DELETE ON {type}
FOR EACH STATEMENT EXECUTE FUNCTION {function}({channel})"""

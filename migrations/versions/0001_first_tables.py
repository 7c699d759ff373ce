"""The first tables, and on PostgreSQL the triggers that wake workers.

Frozen: what has been released is changed by a later revision only.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, oracle, postgresql, sqlite

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
MOMENT = (
    sa.DateTime(timezone=True)
    .with_variant(sa.String(23), "sqlite")
    .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    .with_variant(oracle.TIMESTAMP(timezone=True), "oracle")
)
JSON = sa.Text().with_variant(postgresql.JSONB(), "postgresql").with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
NOW = {
    "postgresql": "statement_timestamp()",
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now'))",
}


def upgrade() -> None:
    """Create everything."""
    names = given_names()
    database = op.get_context().dialect.name
    now = sa.text(NOW[database])
    create_task(names, now)
    create_attempt(names, now)
    create_nodes(names, now)
    if database == "postgresql":
        set_storage(names)
        create_wakeups(names)


def downgrade() -> None:
    """Drop everything, tasks included."""
    names = given_names()
    for table in ("lease", "type", "node", "attempt", "task_archive"):
        op.drop_table(f"{names.prefix}{table}", schema=names.schema)
    op.drop_table(names.task, schema=names.schema)
    if op.get_context().dialect.name == "postgresql":
        for function in ("wake", "wake_pending"):
            execute(f"DROP FUNCTION IF EXISTS {qualified(names, names.prefix + function)}()")


def create_task(names: Any, now: sa.TextClause) -> None:
    """Create the tasks, the archive and their indexes."""
    op.create_table(
        names.task,
        sa.Column("id", BIG, sa.Identity(), primary_key=True),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("payload", JSON),
        sa.Column("status", sa.String(16), nullable=False, server_default="PENDING"),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("max_attempts", sa.Integer),
        sa.Column("available_at", MOMENT, nullable=False, server_default=now),
        sa.Column("created_at", MOMENT, nullable=False, server_default=now),
        sa.Column("updated_at", MOMENT, nullable=False, server_default=now),
        sa.Column("claimed_at", MOMENT),
        sa.Column("claimed_by", sa.String(255)),
        sa.Column("claims", BIG, nullable=False, server_default="0"),
        sa.Column("cancel_requested_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("last_error", sa.Text),
        sa.Column("trace_context", JSON),
        sa.Column("result", JSON),
        sa.Column("progress", JSON),
        sa.PrimaryKeyConstraint("id", name=f"{names.task}_pkey"),
        sa.CheckConstraint(
            "finished_at IS NULL AND status IN ('PENDING', 'RUNNING')"
            " OR finished_at IS NOT NULL AND status IN ('CANCELLED', 'DEAD', 'FAILED', 'SUCCEEDED')",
            name=f"{names.task}_status_known",
        ),
        schema=names.schema,
        sqlite_autoincrement=True,
    )
    create_index(names, "live", ["status", "type", sa.text("priority DESC"), "available_at", "id"], "finished_at IS NULL")
    create_index(names, "ended", ["status", "finished_at", "id"], "finished_at IS NOT NULL")
    create_index(names, "key", ["idempotency_key"], "idempotency_key IS NOT NULL", unique=True)
    op.create_table(
        f"{names.prefix}task_archive",
        sa.Column("id", BIG, primary_key=True, autoincrement=False),
        sa.Column("type", sa.String(255)),
        sa.Column("payload", JSON),
        sa.Column("status", sa.String(16)),
        sa.Column("priority", sa.Integer),
        sa.Column("attempts", sa.Integer),
        sa.Column("max_attempts", sa.Integer),
        sa.Column("available_at", MOMENT),
        sa.Column("created_at", MOMENT),
        sa.Column("updated_at", MOMENT),
        sa.Column("claimed_at", MOMENT),
        sa.Column("claimed_by", sa.String(255)),
        sa.Column("claims", BIG),
        sa.Column("cancel_requested_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("last_error", sa.Text),
        sa.Column("trace_context", JSON),
        sa.Column("result", JSON),
        sa.Column("progress", JSON),
        sa.Column("archived_at", MOMENT, nullable=False, server_default=now),
        schema=names.schema,
    )


def create_index(names: Any, suffix: str, columns: list[Any], where: str, *, unique: bool = False) -> None:
    """Create an index over the rows of one condition."""
    condition = sa.text(where)
    op.create_index(
        f"{names.task}_{suffix}",
        names.task,
        columns,
        unique=unique,
        schema=names.schema,
        postgresql_where=condition,
        sqlite_where=condition,
        mssql_where=condition,
    )


def create_attempt(names: Any, now: sa.TextClause) -> None:
    """Create the failed attempts."""
    op.create_table(
        f"{names.prefix}attempt",
        sa.Column("task_id", BIG, primary_key=True, autoincrement=False),
        sa.Column("claims", BIG, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("node", sa.String(255)),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT, nullable=False, server_default=now),
        sa.Column("error_class", sa.String(255), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("traceback", sa.Text),
        schema=names.schema,
    )


def create_nodes(names: Any, now: sa.TextClause) -> None:
    """Create the nodes, and what they agree on: types and leases."""
    op.create_table(
        f"{names.prefix}node",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        sa.Column("types", JSON, nullable=False),
        sa.Column("limits", JSON, nullable=False),
        sa.Column("started_at", MOMENT, nullable=False, server_default=now),
        sa.Column("heartbeat_at", MOMENT, nullable=False, server_default=now),
        sa.Column("expired_at", MOMENT),
        schema=names.schema,
    )
    op.create_table(
        f"{names.prefix}type",
        sa.Column("type", sa.String(255), primary_key=True),
        sa.Column("paused_at", MOMENT),
        sa.Column("paused_by", sa.String(255)),
        sa.Column("pause_reason", sa.Text),
        schema=names.schema,
    )
    op.create_table(
        f"{names.prefix}lease",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("node", sa.String(255)),
        sa.Column("expires_at", MOMENT, nullable=False),
        schema=names.schema,
    )


def given_names() -> Any:
    """Return the names of the installation that is migrated."""
    config = op.get_context().config
    assert config is not None
    return config.attributes["names"]


def set_storage(names: Any) -> None:
    """Tell PostgreSQL that rows come and go: autovacuum must not wait until a fifth of the table is dead."""
    # A statement of its own, since SQLAlchemy 2.0 can not say it in CREATE TABLE.
    execute(
        f"ALTER TABLE {qualified(names, names.task)} SET (fillfactor = 80,"
        " autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,"
        " autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,"
        " autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000,"
        " autovacuum_vacuum_cost_delay = 1)"
    )


def create_wakeups(names: Any) -> None:
    """Create the triggers of PostgreSQL, for rows that are inserted by hand too. They read and write no table."""
    task, kind = qualified(names, names.task), qualified(names, f"{names.prefix}type")
    wake, wake_pending = (qualified(names, f"{names.prefix}{function}") for function in ("wake", "wake_pending"))
    inserted, updated, resumed = (quote(f"{names.prefix}{event}") for event in ("inserted", "updated", "resumed"))
    channel = "'" + names.channel.replace("'", "''") + "'"
    execute(
        f"CREATE OR REPLACE FUNCTION {wake}() RETURNS trigger LANGUAGE plpgsql AS $wake$\n"
        "BEGIN\n"
        "  PERFORM pg_catalog.pg_notify(TG_ARGV[0], '');\n"
        "  RETURN NULL;\n"
        "END\n"
        "$wake$"
    )
    execute(
        f"CREATE OR REPLACE FUNCTION {wake_pending}() RETURNS trigger LANGUAGE plpgsql AS $wake$\n"
        "BEGIN\n"
        "  IF EXISTS (SELECT FROM inserted WHERE status OPERATOR(pg_catalog.=) 'PENDING') THEN\n"
        "    PERFORM pg_catalog.pg_notify(TG_ARGV[0], '');\n"
        "  END IF;\n"
        "  RETURN NULL;\n"
        "END\n"
        "$wake$"
    )
    execute(
        f"CREATE TRIGGER {inserted} AFTER INSERT ON {task} REFERENCING NEW TABLE AS inserted"
        f" FOR EACH STATEMENT EXECUTE FUNCTION {wake_pending}({channel})"
    )
    execute(
        f"CREATE TRIGGER {updated} AFTER UPDATE ON {task} FOR EACH ROW"
        " WHEN (NEW.status = 'PENDING' AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.available_at IS DISTINCT FROM NEW.available_at))"
        f" EXECUTE FUNCTION {wake}({channel})"
    )
    execute(f"CREATE TRIGGER {resumed} AFTER INSERT OR UPDATE OR DELETE ON {kind} FOR EACH STATEMENT EXECUTE FUNCTION {wake}({channel})")


def qualified(names: Any, name: str) -> str:
    """Return a quoted name with its schema, if there is one."""
    return quote(name) if names.schema is None else f"{quote(names.schema)}.{quote(name)}"


def quote(name: str) -> str:
    """Return a name as the database quotes it."""
    return str(op.get_context().dialect.identifier_preparer.quote(name))


def execute(statement: str) -> None:
    """Run a finished statement: no character in it stands for a parameter."""
    op.execute(statement.replace(":", r"\:"))

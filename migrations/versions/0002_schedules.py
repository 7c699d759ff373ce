"""Recurring schedules.

Frozen: what has been released is changed by a later revision only.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, oracle, postgresql, sqlite

revision = "0002"
down_revision = "0001"
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
    """Create the schedules."""
    names = given_names()
    now = sa.text(NOW[op.get_context().dialect.name])
    name = f"{names.prefix}schedule"
    op.create_table(
        name,
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("payload", JSON),
        sa.Column("definition", JSON, nullable=False),
        sa.Column("superseded", JSON),
        sa.Column("declared_by", sa.String(255)),
        sa.Column("next_at", MOMENT),
        sa.Column("task_id", BIG),
        sa.Column("requested_at", MOMENT),
        sa.Column("paused_at", MOMENT),
        sa.Column("state", JSON),
        sa.Column("runs", BIG, nullable=False, server_default="0"),
        sa.Column("successes", BIG, nullable=False, server_default="0"),
        sa.Column("runs_since_success", BIG, nullable=False, server_default="0"),
        sa.Column("last_task_id", BIG),
        sa.Column("last_scheduled_at", MOMENT),
        sa.Column("last_started_at", MOMENT),
        sa.Column("last_ended_at", MOMENT),
        sa.Column("last_success_at", MOMENT),
        sa.Column("created_at", MOMENT, nullable=False, server_default=now),
        sa.Column("updated_at", MOMENT, nullable=False, server_default=now),
        schema=names.schema,
    )
    op.create_index(f"{name}_next", name, ["next_at"], schema=names.schema)
    running = sa.text("task_id IS NOT NULL")
    op.create_index(
        f"{name}_running",
        name,
        ["task_id"],
        schema=names.schema,
        postgresql_where=running,
        sqlite_where=running,
        mssql_where=running,
    )


def downgrade() -> None:
    """Drop the schedules; the tasks of their occurrences stay."""
    names = given_names()
    op.drop_table(f"{names.prefix}schedule", schema=names.schema)


def given_names() -> Any:
    """Return the names of the installation that is migrated."""
    config = op.get_context().config
    assert config is not None
    return config.attributes["names"]

"""The engine's tables, made for one prefix and schema. They stand in a MetaData of their own, never in the host's."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import sqlalchemy as sa

from ..domain.states import ENDED, LIVE, TaskStatus
from .clock import db_now
from .types import BigInt, JsonText, UtcDateTime

ERROR_TEXT_LIMIT = 2000
"""Characters of ``last_error``; the whole story stands in the attempt."""

_LONGEST_CHANNEL = 63


@dataclass(frozen=True, slots=True)
class Names:
    """How the engine's things are called in this deployment."""

    prefix: str = "taskengine_"
    task_table: str | None = None
    schema: str | None = None

    @property
    def task(self) -> str:
        return self.task_table or f"{self.prefix}task"

    @property
    def channel(self) -> str:
        """The channel of the wake-ups; one per schema and prefix. PostgreSQL allows 63 bytes."""
        name = f"{self.schema}.{self.prefix}due" if self.schema else f"{self.prefix}due"
        if len(name.encode()) <= _LONGEST_CHANNEL:
            return name
        return f"{self.prefix[:16]}{blake2b(name.encode(), digest_size=16).hexdigest()}_due"

    @property
    def version_table(self) -> str:
        return f"{self.prefix}version"


class Tables:
    """The Core tables for one set of names."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.metadata = sa.MetaData(schema=names.schema)
        self.task = self._task_table()
        self.archive = sa.Table(
            f"{names.prefix}task_archive",
            self.metadata,
            *(sa.Column(c.name, c.type, primary_key=c.primary_key, autoincrement=False) for c in self.task.columns),
            sa.Column("archived_at", UtcDateTime(), server_default=db_now(), nullable=False),
        )
        self.attempt = sa.Table(
            f"{names.prefix}attempt",
            self.metadata,
            sa.Column("task_id", BigInt, primary_key=True, autoincrement=False),
            sa.Column("claims", BigInt, primary_key=True, autoincrement=False),
            sa.Column("attempt", sa.Integer, nullable=False),
            sa.Column("node", sa.String(255)),
            sa.Column("started_at", UtcDateTime()),
            sa.Column("finished_at", UtcDateTime(), nullable=False, server_default=db_now()),
            sa.Column("error_class", sa.String(255), nullable=False),
            sa.Column("message", sa.Text, nullable=False),
            sa.Column("traceback", sa.Text),
        )
        self.node = sa.Table(
            f"{names.prefix}node",
            self.metadata,
            sa.Column("id", sa.String(255), primary_key=True),
            sa.Column("label", sa.String(255), nullable=False),
            sa.Column("host", sa.String(255), nullable=False),
            sa.Column("pid", sa.Integer, nullable=False),
            sa.Column("version", sa.String(64), nullable=False),
            sa.Column("concurrency", sa.Integer, nullable=False),
            sa.Column("types", JsonText(), nullable=False),
            sa.Column("limits", JsonText(), nullable=False),
            sa.Column("started_at", UtcDateTime(), nullable=False, server_default=db_now()),
            sa.Column("heartbeat_at", UtcDateTime(), nullable=False, server_default=db_now()),
            sa.Column("expired_at", UtcDateTime()),
        )
        self.type = sa.Table(
            f"{names.prefix}type",
            self.metadata,
            sa.Column("type", sa.String(255), primary_key=True),
            sa.Column("paused_at", UtcDateTime()),
            sa.Column("paused_by", sa.String(255)),
            sa.Column("pause_reason", sa.Text),
        )
        self.lease = sa.Table(
            f"{names.prefix}lease",
            self.metadata,
            sa.Column("name", sa.String(255), primary_key=True),
            sa.Column("node", sa.String(255)),
            sa.Column("expires_at", UtcDateTime(), nullable=False),
        )
        self.schedule = self._schedule_table()

    def _schedule_table(self) -> sa.Table:
        name = f"{self.names.prefix}schedule"
        table = sa.Table(
            name,
            self.metadata,
            sa.Column("name", sa.String(255), primary_key=True),
            sa.Column("source", sa.String(16), nullable=False),
            sa.Column("type", sa.String(255), nullable=False),
            sa.Column("payload", JsonText()),
            sa.Column("definition", JsonText(), nullable=False),
            sa.Column("superseded", JsonText()),
            sa.Column("declared_by", sa.String(255)),
            sa.Column("next_at", UtcDateTime()),
            sa.Column("task_id", BigInt),
            sa.Column("requested_at", UtcDateTime()),
            sa.Column("paused_at", UtcDateTime()),
            sa.Column("state", JsonText()),
            sa.Column("runs", BigInt, nullable=False, server_default="0"),
            sa.Column("successes", BigInt, nullable=False, server_default="0"),
            sa.Column("runs_since_success", BigInt, nullable=False, server_default="0"),
            sa.Column("last_task_id", BigInt),
            sa.Column("last_scheduled_at", UtcDateTime()),
            sa.Column("last_started_at", UtcDateTime()),
            sa.Column("last_ended_at", UtcDateTime()),
            sa.Column("last_success_at", UtcDateTime()),
            sa.Column("created_at", UtcDateTime(), nullable=False, server_default=db_now()),
            sa.Column("updated_at", UtcDateTime(), nullable=False, server_default=db_now()),
        )
        sa.Index(f"{name}_next", table.c.next_at)
        running = table.c.task_id.is_not(None)
        sa.Index(f"{name}_running", table.c.task_id, postgresql_where=running, sqlite_where=running, mssql_where=running)
        return table

    def _task_table(self) -> sa.Table:
        name = self.names.task
        live_names = ", ".join(f"'{status}'" for status in sorted(LIVE))
        ended_names = ", ".join(f"'{status}'" for status in sorted(ENDED))
        table = sa.Table(
            name,
            self.metadata,
            sa.Column("id", BigInt, sa.Identity(), primary_key=True),
            sa.Column("type", sa.String(255), nullable=False),
            sa.Column("payload", JsonText()),
            sa.Column("status", sa.String(16), nullable=False, server_default=TaskStatus.PENDING.value),
            sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
            sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
            sa.Column("max_attempts", sa.Integer),
            sa.Column("available_at", UtcDateTime(), nullable=False, server_default=db_now()),
            sa.Column("created_at", UtcDateTime(), nullable=False, server_default=db_now()),
            sa.Column("updated_at", UtcDateTime(), nullable=False, server_default=db_now()),
            sa.Column("claimed_at", UtcDateTime()),
            sa.Column("claimed_by", sa.String(255)),
            sa.Column("claims", BigInt, nullable=False, server_default="0"),
            sa.Column("cancel_requested_at", UtcDateTime()),
            sa.Column("finished_at", UtcDateTime()),
            sa.Column("idempotency_key", sa.String(255)),
            sa.Column("last_error", sa.Text),
            sa.Column("trace_context", JsonText()),
            sa.Column("result", JsonText()),
            sa.Column("progress", JsonText()),
            sa.CheckConstraint(
                f"finished_at IS NULL AND status IN ({live_names}) OR finished_at IS NOT NULL AND status IN ({ended_names})",
                name=f"{name}_status_known",
            ),
            sqlite_autoincrement=True,
        )
        table.append_constraint(sa.PrimaryKeyConstraint(table.c.id, name=f"{name}_pkey"))
        live = table.c.finished_at.is_(None)
        ended_rows = table.c.finished_at.is_not(None)
        keyed = table.c.idempotency_key.is_not(None)
        sa.Index(
            f"{name}_live",
            table.c.status,
            table.c.type,
            table.c.priority.desc(),
            table.c.available_at,
            table.c.id,
            postgresql_where=live,
            sqlite_where=live,
            mssql_where=live,
        )
        sa.Index(
            f"{name}_ended",
            table.c.status,
            table.c.finished_at,
            table.c.id,
            postgresql_where=ended_rows,
            sqlite_where=ended_rows,
            mssql_where=ended_rows,
        )
        sa.Index(
            f"{name}_key",
            table.c.idempotency_key,
            unique=True,
            postgresql_where=keyed,
            sqlite_where=keyed,
            mssql_where=keyed,
        )
        return table

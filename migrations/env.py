"""Runs the scripts on the connection, and with the names, that the caller has put into the configuration's attributes."""

from __future__ import annotations

from typing import Any

from alembic import context

attributes = context.config.attributes
names = attributes["names"]
options: dict[str, Any] = {
    "version_table": names.version_table,
    "version_table_schema": names.schema,
    "transaction_per_migration": False,
}
if context.is_offline_mode():
    options |= {"dialect_name": attributes["database"], "literal_binds": True}
else:
    options |= {"connection": attributes["connection"]}
context.configure(**options)
with context.begin_transaction():
    context.run_migrations()

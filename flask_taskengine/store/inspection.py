"""Compares the tables of a database with those that the engine needs; reads only."""

from __future__ import annotations

import sqlalchemy as sa

from .tables import Tables


def missing_tables(connection: sa.Connection, tables: Tables) -> list[str]:
    """Return the tables and columns that the database lacks, one sentence each; further columns are the host's own affair."""
    schema = tables.names.schema
    wanted = {table.name: table for table in tables.metadata.sorted_tables}
    reflected = sa.inspect(connection).get_multi_columns(schema=schema, filter_names=list(wanted))
    found = {name: {column["name"] for column in columns} for (_, name), columns in reflected.items()}
    faults = []
    for name, table in wanted.items():
        if name not in found:
            faults.append(f"the table {table.fullname} is missing: {_REMEDY}")
        elif lost := [column.name for column in table.columns if column.name not in found[name]]:
            faults.append(f"the table {table.fullname} lacks the columns {', '.join(lost)}: {_REMEDY}")
    return faults


def missing_indexes(connection: sa.Connection, tables: Tables) -> list[str]:
    """Return the indexes that the database lacks, one sentence each."""
    schema = tables.names.schema
    wanted = {table.name: table for table in tables.metadata.sorted_tables if table.indexes}
    reflected = sa.inspect(connection).get_multi_indexes(schema=schema, filter_names=list(wanted))
    found = {name: {index["name"] for index in indexes} for (_, name), indexes in reflected.items()}
    return [
        f"the index {index.name} of {table.fullname} is missing: create it again, `flask taskengine migrate --sql` prints its DDL"
        for name, table in wanted.items()
        for index in sorted(table.indexes, key=lambda index: str(index.name))
        if index.name not in found.get(name, set())
    ]


_REMEDY = "if TASKENGINE_TASK_TABLE, TASKENGINE_TABLE_PREFIX or TASKENGINE_SCHEMA was changed, set it back or rename the tables"

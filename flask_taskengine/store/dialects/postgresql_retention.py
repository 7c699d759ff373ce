"""How PostgreSQL removes tasks that have ended: each batch is one statement."""

from __future__ import annotations

import sqlalchemy as sa

from ..retention import Batch, Mark, Removed
from ..tables import Tables


def prune_statement(tables: Tables, preparer: sa.sql.compiler.IdentifierPreparer, *, archive: bool, most: int) -> str:
    """Return the statement that removes a batch."""
    task, attempt, kept = (preparer.format_table(table) for table in (tables.task, tables.attempt, tables.archive))
    columns = [column.name for column in tables.task.columns]
    names, replaced = ", ".join(columns), ", ".join(f"{name} = EXCLUDED.{name}" for name in columns if name != "id")
    rest = _ARCHIVE.format(archive=kept, names=names, replaced=replaced) if archive else _FORGET.format(attempt=attempt)
    return _PRUNE.format(task=task, most=most, rest=rest)


def prune(connection: sa.Connection, statement: str, batch: Batch) -> Removed:
    """Run the statement that was made for such batches."""
    after = batch.after
    parameters = {
        "status": batch.status.value,
        "kept_for": batch.kept_for,
        "finished_at": after and after.finished_at,
        "id": after.id if after else 0,
    }
    count, finished_at, last_id = connection.exec_driver_sql(statement, parameters).one()
    return Removed(count, Mark(finished_at, last_id) if count else None)


# The ids as arrays: whatever the planner thinks of the tables, it then looks each of them up. The limit written as a
# number is for the planner too. Locked first and skipped where locked, so that no plan waits for a task in use.
_PRUNE = """
WITH picked AS MATERIALIZED (
  SELECT id FROM {task}
  WHERE status = %(status)s AND finished_at IS NOT NULL
    AND finished_at <= statement_timestamp() - make_interval(secs => %(kept_for)s)
    AND (finished_at, id) > (coalesce(%(finished_at)s::timestamptz, '-infinity'), %(id)s)
  ORDER BY finished_at, id LIMIT {most} FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {task} WHERE id = ANY(ARRAY(SELECT id FROM picked)) RETURNING *
), {rest}
SELECT count(*), max(finished_at), (array_agg(id ORDER BY finished_at DESC, id DESC))[1] FROM gone
"""

_FORGET = """forgotten AS (
  DELETE FROM {attempt} WHERE task_id = ANY(ARRAY(SELECT id FROM gone))
)"""

# A task that was brought back from the archive by hand may come a second time.
_ARCHIVE = """moved AS (
  INSERT INTO {archive} ({names}) SELECT {names} FROM gone ON CONFLICT (id) DO UPDATE SET {replaced}, archived_at = DEFAULT
)"""

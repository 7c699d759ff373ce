"""What PostgreSQL says of a task's place in the queue and of its own health."""

from __future__ import annotations

import sqlalchemy as sa

from ...domain.states import ENDED, LIVE, TaskStatus
from ..vitals import Depth, OldestTransaction, Vitals

_COUNTED = 10_000
"""Tasks of one status are counted up to this number; of more there is an estimate."""

# How many tasks come before one. As in the claim, one probe per type and priority: neither future rows nor those that come
# later are walked. Both limits bound it, whatever stands in the queue.
AHEAD = """
WITH RECURSIVE lane (type) AS MATERIALIZED (SELECT unnest(%(types)s::text[])), step (type, priority) AS (
  SELECT lane.type, (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = lane.type AND t.priority >= %(priority)s ORDER BY t.priority DESC LIMIT 1) FROM lane
  UNION ALL
  SELECT step.type, (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = step.type AND t.priority < step.priority AND t.priority >= %(priority)s ORDER BY t.priority DESC LIMIT 1)
  FROM step WHERE step.priority IS NOT NULL
)
SELECT count(*) FROM (
  SELECT FROM (SELECT * FROM step LIMIT {steps}) step CROSS JOIN LATERAL (
    SELECT FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type = step.type AND t.priority = step.priority
      AND (t.available_at, t.id) < (CASE WHEN step.priority > %(priority)s THEN statement_timestamp() ELSE %(available_at)s END,
                                    CASE WHEN step.priority > %(priority)s THEN 9223372036854775807 ELSE %(id)s END)
    LIMIT {most}) before
  LIMIT {most}) counted
"""

_DEPTH = """
SELECT s.status, (SELECT count(*) FROM (SELECT FROM {task} t WHERE t.status = s.status AND t.finished_at IS NULL LIMIT {most}) c)
FROM unnest(%(live)s::text[]) AS s (status)
UNION ALL
SELECT s.status, (SELECT count(*) FROM (SELECT FROM {task} t WHERE t.status = s.status AND t.finished_at IS NOT NULL LIMIT {most}) c)
FROM unnest(%(ended)s::text[]) AS s (status)
"""

_ESTIMATE = """
SELECT v.status, v.share * c.reltuples
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = 'status'
CROSS JOIN LATERAL unnest(s.most_common_vals::text::text[], s.most_common_freqs) AS v (status, share)
WHERE c.oid = to_regclass(%(task)s)
"""

# Whoever has the oldest snapshot or transaction id keeps VACUUM from removing what died since. An idle READ COMMITTED
# transaction that has only read has neither, and does no harm. Of other roles' sessions a plain role sees neither.
_VITALS = """
SELECT pg_stat_get_dead_tuples(to_regclass(%(task)s)), pg_notification_queue_usage(), pg_has_role('pg_read_all_stats', 'USAGE'), o.*
FROM (SELECT) one LEFT JOIN LATERAL (
  SELECT * FROM (
    SELECT greatest(age(backend_xid), age(backend_xmin)) AS behind, EXTRACT(epoch FROM clock_timestamp() - xact_start) AS age,
      pid, application_name AS holder, usename::text AS username, state
    FROM pg_catalog.pg_stat_activity
    WHERE (datname = current_database() OR backend_type = 'walsender') AND backend_type <> 'autovacuum worker'
      AND pid <> pg_backend_pid() AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
    UNION ALL
    SELECT age(transaction), EXTRACT(epoch FROM clock_timestamp() - prepared), NULL, 'prepared transaction ' || gid, owner::text, 'prepared'
    FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT age(xmin), NULL, NULL, 'replication slot ' || slot_name, '', CASE WHEN active THEN 'active' ELSE 'inactive' END
    FROM pg_catalog.pg_replication_slots WHERE xmin IS NOT NULL
  ) holders ORDER BY behind DESC, age DESC NULLS LAST LIMIT 1
) o ON true
"""


def depth(connection: sa.Connection, task: str) -> Depth:
    """Count the tasks of each status as far as that is cheap, and estimate the rest from the planner's statistics."""
    parameters = {"live": sorted(LIVE), "ended": sorted(ENDED)}
    rows = connection.exec_driver_sql(_DEPTH.format(task=task, most=_COUNTED), parameters)
    counts = {TaskStatus(status): number for status, number in rows}
    many = frozenset(status for status, number in counts.items() if number >= _COUNTED)
    if many:
        estimates = {status: int(number) for status, number in connection.exec_driver_sql(_ESTIMATE, {"task": task})}
        counts |= {status: max(_COUNTED, estimates.get(status.value, 0)) for status in many}
    return Depth(counts, many)


def vitals(connection: sa.Connection, task: str) -> Vitals:
    """Read what the server knows of dead rows and of who keeps them."""
    dead, usage, sees_all, _, age, pid, holder, user, state = connection.exec_driver_sql(_VITALS, {"task": task}).one()
    oldest = None
    if holder is not None:
        oldest = OldestTransaction(age=None if age is None else float(age), pid=pid, holder=holder, user=user or "", state=state or "")
    return Vitals(dead_rows=dead, oldest_transaction=oldest, sees_all=sees_all, notify_queue_usage=usage)

"""What PostgreSQL says of a task's place in the queue and of its own health."""

from __future__ import annotations

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

"""What PostgreSQL measures of the queue."""

from __future__ import annotations

# A probe per type, and per type and priority for the earliest due time, as in the claim; of each type a bounded slice of the
# index is counted. Ended rows are never looked at.
GAUGES = """
WITH RECURSIVE waiting (type) AS (
  (SELECT type FROM {task} WHERE status = 'PENDING' AND finished_at IS NULL ORDER BY type LIMIT 1)
  UNION ALL
  SELECT (SELECT t.type FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type > waiting.type
    ORDER BY t.type LIMIT 1) FROM waiting WHERE waiting.type IS NOT NULL
), lane (type, priority) AS (
  SELECT waiting.type, (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = waiting.type ORDER BY t.priority DESC LIMIT 1) FROM waiting WHERE waiting.type IS NOT NULL
  UNION ALL
  SELECT lane.type, (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = lane.type AND t.priority < lane.priority ORDER BY t.priority DESC LIMIT 1)
  FROM lane WHERE lane.priority IS NOT NULL
), earliest (type, at) AS (
  SELECT lane.type, min(first.available_at) FROM lane CROSS JOIN LATERAL (
    SELECT t.available_at FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
      AND t.type = lane.type AND t.priority = lane.priority ORDER BY t.available_at LIMIT 1) first
  GROUP BY lane.type
)
SELECT 'PENDING', waiting.type, counted.number::float8, counted.due::float8,
  EXTRACT(epoch FROM statement_timestamp() - earliest.at)::float8
FROM waiting JOIN earliest ON earliest.type = waiting.type CROSS JOIN LATERAL (
  SELECT count(*) AS number, count(*) FILTER (WHERE few.available_at <= statement_timestamp()) AS due
  FROM (SELECT t.available_at FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type = waiting.type
    LIMIT {most}) few) counted
UNION ALL
SELECT 'RUNNING', type, count(*)::float8, NULL, NULL FROM {task} WHERE status = 'RUNNING' AND finished_at IS NULL GROUP BY type
UNION ALL
SELECT 'paused', type, 1, NULL, NULL FROM {type} WHERE paused_at IS NOT NULL
UNION ALL
SELECT 'node', limits::text, 1, NULL, NULL FROM {node}
WHERE expired_at IS NULL AND heartbeat_at >= statement_timestamp() - make_interval(secs => %(lease)s)
UNION ALL
SELECT 'dead_tuples', NULL, pg_stat_get_dead_tuples(%(task)s::regclass)::float8, NULL, NULL
UNION ALL
SELECT 'notify_queue', NULL, pg_notification_queue_usage(), NULL, NULL
"""

"""What SQLite says of a task's place in the queue."""

from __future__ import annotations

# How many tasks come before one: a probe per type and priority, then a slice of the index of each.
AHEAD = """
WITH RECURSIVE lane (type) AS ({lanes}), step (type, priority) AS (
  SELECT lane.type, (SELECT max(t.priority) FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = lane.type AND t.priority >= ?) FROM lane
  UNION ALL
  SELECT step.type, (SELECT max(t.priority) FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = step.type AND t.priority < step.priority AND t.priority >= ?)
  FROM step WHERE step.priority IS NOT NULL
)
SELECT count(*) FROM (
  SELECT 1 FROM (SELECT type, priority FROM step WHERE priority IS NOT NULL LIMIT {steps}) s CROSS JOIN {task} t
  WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type = s.type AND t.priority = s.priority
    AND (t.available_at, t.id) < (CASE WHEN s.priority > ? THEN {now} ELSE ? END,
                                  CASE WHEN s.priority > ? THEN 9223372036854775807 ELSE ? END)
  LIMIT ?)
"""

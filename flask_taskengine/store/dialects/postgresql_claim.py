"""How PostgreSQL finds due tasks: the claim, and when the next task is due."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from ..lowwater import Lane

# Walks each type's slice of the index from its highest priority down, one probe per priority, and stops as soon as it has
# enough: neither future rows of a high priority nor a backlog of a type that is left out cost anything. The best of all
# types are found without a lock, and then as many of each type are locked, so that no row is locked that is not taken,
# and a node that comes second goes on behind the rows of the first. Materialised, so that no plan can run the locking
# part twice. The limits written as numbers and the array are for the planner: without the one it expects a tenth of the
# table and compiles (JIT) first, without the other it may read the whole table to find the rows again, and where it knows
# how many types there are, a plan that was prepared is as good as one that is made anew for each claim.
_CLAIM = """
WITH alive AS MATERIALIZED (
  SELECT id FROM {node} WHERE id = %(node)s AND expired_at IS NULL FOR KEY SHARE
), lane AS MATERIALIZED (
  SELECT w.type, least(w.room, %(most)s) AS room
  FROM (SELECT * FROM unnest(%(types)s::text[], %(rooms)s::int[]) LIMIT {types}) AS w (type, room)
  WHERE EXISTS (SELECT FROM alive)
    AND NOT EXISTS (SELECT FROM {type} p WHERE p.type IN (w.type, '*') AND p.paused_at IS NOT NULL)
), {known}best AS MATERIALIZED (
  {best}
), picked AS MATERIALIZED (
  SELECT r.id FROM best AS lane CROSS JOIN LATERAL ({locked_walk}) r
)
UPDATE {task} AS t SET status = 'RUNNING', attempts = t.attempts + 1, claims = t.claims + 1, claimed_by = %(node)s,
  claimed_at = statement_timestamp(), updated_at = statement_timestamp()
WHERE t.id = ANY (ARRAY(SELECT id FROM picked))
RETURNING t.id, t.type, t.payload::text, t.priority, t.attempts, t.max_attempts, t.available_at, t.created_at, t.claimed_at, t.claims,
  t.idempotency_key, t.trace_context::text, EXTRACT(epoch FROM clock_timestamp() - statement_timestamp()), (SELECT sum(room) FROM best)
"""

_BEST = """SELECT b.type, count(*) AS room FROM (
    SELECT lane.type FROM lane CROSS JOIN LATERAL ({walk}) w ORDER BY w.priority DESC, w.available_at, w.id LIMIT %(most)s) b
  GROUP BY b.type LIMIT {types}"""
_ALL = "SELECT type, room FROM lane"

# The due tasks of one type, as many as it has room, in the order in which they are to start.
_WALK = """
    SELECT f.id, f.available_at, s.priority FROM ({steps}) s CROSS JOIN LATERAL (SELECT c.id, c.available_at FROM (
      SELECT t.id, t.available_at FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type = lane.type
        AND t.priority = s.priority AND t.available_at <= statement_timestamp(){begin}
      ORDER BY t.available_at, t.id LIMIT lane.room {lock}) c
    LIMIT {ceiling}) f
    LIMIT lane.room"""

_STEPS = """
      WITH RECURSIVE step (priority) AS (
        SELECT (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type = lane.type
          ORDER BY t.priority DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL AND t.type = lane.type
          AND t.priority < step.priority ORDER BY t.priority DESC LIMIT 1)
        FROM step WHERE step.priority IS NOT NULL
      ) SELECT priority FROM step WHERE priority IS NOT NULL
    """

# Where the priorities of each type are known, and where each begins: what was taken before costs nothing, though it still
# stands in the index.
_KNOWN = """known AS MATERIALIZED (
  SELECT * FROM unnest(%(lane_types)s::text[], %(lane_priorities)s::int[], %(lane_begins)s::timestamptz[]) AS k (type, priority, since)
), """
_KNOWN_STEPS = "SELECT k.priority, k.since FROM known k WHERE k.type = lane.type ORDER BY k.priority DESC"
_BEGIN = " AND t.available_at >= s.since"

# One probe per type and priority, as in the claim.
_FIRST_OF_EACH = """
WITH RECURSIVE known (type) AS MATERIALIZED ({types}), lane (type, priority) AS (
  SELECT known.type, (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = known.type ORDER BY t.priority DESC LIMIT 1) FROM known
  UNION ALL
  SELECT lane.type, (SELECT t.priority FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
    AND t.type = lane.type AND t.priority < lane.priority ORDER BY t.priority DESC LIMIT 1)
  FROM lane WHERE lane.priority IS NOT NULL
)
{select} FROM lane CROSS JOIN LATERAL (SELECT t.available_at FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
  AND t.type = lane.type AND t.priority = lane.priority ORDER BY t.available_at LIMIT 1) first {group}
"""

_FIRST_IN_LANES = """
WITH lane AS MATERIALIZED (
  SELECT w.* FROM unnest(%(lane_types)s::text[], %(lane_priorities)s::int[], %(lane_begins)s::timestamptz[]) AS w (type, priority, since)
  WHERE NOT EXISTS (SELECT FROM {type} p WHERE p.type IN (w.type, '*') AND p.paused_at IS NOT NULL)
)
{select} FROM lane CROSS JOIN LATERAL (SELECT t.available_at FROM {task} t WHERE t.status = 'PENDING' AND t.finished_at IS NULL
  AND t.type = lane.type AND t.priority = lane.priority AND t.available_at >= lane.since ORDER BY t.available_at LIMIT 1) first {group}
"""
_WAIT = {"select": "SELECT lane.type, EXTRACT(epoch FROM min(first.available_at) - statement_timestamp())", "group": "GROUP BY lane.type"}
# No later than now, since what is enqueued from now on may be due before what was first in a lane.
_BEGINS = {"select": "SELECT lane.type, lane.priority, least(first.available_at, statement_timestamp())", "group": ""}


def wait_statement(task: str, types: str) -> str:
    """Return what finds when the first task of each type is due; ``types`` is a query of the types."""
    return _FIRST_OF_EACH.format(task=task, types=types, **_WAIT)


def wait_in_lanes_statement(task: str, task_type: str) -> str:
    """Return the same for the known lanes."""
    return _FIRST_IN_LANES.format(task=task, type=task_type, **_WAIT)


def lanes_statement(task: str, types: str) -> str:
    """Return what finds the lanes of these types and the time from which on each has tasks."""
    return _FIRST_OF_EACH.format(task=task, types=types, **_BEGINS)


def claim_statement(task: str, node: str, task_type: str, types: int, most: int, *, ranked: bool, in_lanes: bool) -> str:
    """Return the claim for up to ``most`` tasks of so many types; the names are those of the tables.

    Args:
        ranked: the types compete for places.
        in_lanes: search the known lanes only.
    """
    return _claim_statement(task, node, task_type, types, 1 << (most - 1).bit_length(), ranked, in_lanes)


@lru_cache(maxsize=256)
def _claim_statement(task: str, node: str, task_type: str, types: int, ceiling: int, ranked: bool, in_lanes: bool) -> str:
    steps, begin, known = (_KNOWN_STEPS, _BEGIN, _KNOWN) if in_lanes else (_STEPS.format(task=task), "", "")
    walk, locked_walk = (
        _WALK.format(task=task, ceiling=ceiling, lock=lock, steps=steps, begin=begin) for lock in ("", "FOR UPDATE SKIP LOCKED")
    )
    best = _BEST.format(walk=walk, types=types) if ranked else _ALL
    return _CLAIM.format(task=task, node=node, type=task_type, types=types, known=known, best=best, locked_walk=locked_walk)


def lane_parameters(lanes: Mapping[Lane, datetime]) -> dict[str, Any]:
    """Return the lanes as arrays."""
    return {
        "lane_types": [task_type for task_type, _ in lanes],
        "lane_priorities": [priority for _, priority in lanes],
        "lane_begins": list(lanes.values()),
    }

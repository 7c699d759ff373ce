"""The run of an occurrence: whether it may begin, what its end means, and what its schedule does next."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ..domain.backoff import Backoff, Series
from ..domain.errors import InvalidArgument, Reject, Snooze
from ..domain.occurrence import Occurrence, OccurrenceEnd, occurrence_of
from ..domain.outcome import Ending, Orphaned, Outcome, Verdict, decide
from ..domain.retry import RetryPolicy
from ..domain.schedule import later
from ..domain.states import LIVE
from ..domain.task import Claimed
from ..store import schedules
from ..store.dialects.base import Dialect
from ..store.schedules import CODE, ScheduleRow
from ..store.tables import Tables
from .cron import Cron
from .definition import Definition, read_definition
from .recurring import begin_requested, most_attempts
from .schedule_context import ScheduleContext

RUNS_OF_LOST_NODES = 3
"""So often an occurrence is begun whose node dies, where its failure setting allows less: that is no failure of the handler."""
_WAIT_FOR_TURN, _LONGEST_WAIT_FOR_TURN = 1.0, 60.0
_WAIT_FOR_READER = 5.0
_AT_ONCE = Backoff(Series.FIXED, 0.0, None, 0.0)
_logger = logging.getLogger("flask_taskengine")


def may_begin(connection: sa.Connection, tables: Tables, task: Claimed) -> ScheduleContext | None:
    """Return what the handler is told; ``None`` where the task is no occurrence. Writes only for one that was retried by hand.

    Raises:
        Snooze: another occurrence of the schedule has begun and not ended, or a newer version has written the schedule.
        Reject: the schedule was removed.
    """
    occurrence = occurrence_of(task.idempotency_key)
    if occurrence is None:
        return None
    row = schedules.get(connection, tables, occurrence.name)
    if row is None:
        raise Reject(f"the schedule {occurrence.name!r} of this occurrence was removed")
    if row.task_id != task.id and not schedules.adopt(connection, tables, row.name, task.id):
        # What was claimed without counting has waited before; thousands that are retried by hand at once must not ask every second.
        raise Snooze(min(_LONGEST_WAIT_FOR_TURN, _WAIT_FOR_TURN * 1.5 ** min(task.claims - task.attempts, 20)))
    try:
        definition = read_definition(row.definition)
    except InvalidArgument as error:
        _logger.warning("an occurrence of schedule %r is left to a node that can read it: %s", row.name, error)
        raise Snooze(_WAIT_FOR_READER) from error
    return ScheduleContext(
        name=row.name,
        scheduled_at=occurrence.scheduled_at,
        by_hand=occurrence.by_hand,
        attempt=task.attempts,
        max_attempts=task.max_attempts if task.max_attempts is not None else most_attempts(row, definition),
        runs=row.runs,
        successes=row.successes,
        runs_since_success=row.runs_since_success,
        last_success_at=row.last_success_at,
        next_at=row.next_at,
        state=row.state,
        dynamic=row.definition["timing"]["kind"] == "dynamic",
    )


@dataclass(frozen=True, slots=True)
class Held:
    """The schedule of an occurrence that ends; its row is locked until the transaction ends."""

    occurrence: Occurrence
    row: ScheduleRow
    now: datetime
    definition: Definition
    context: ScheduleContext | None
    """``None`` where somebody else ends the run: its node is lost."""

    @property
    def wanted(self) -> datetime | None:
        """The next time that the handler has asked for."""
        return None if self.context is None else self.context.next_from(self.now)


def hold(connection: sa.Connection, tables: Tables, task: Claimed, context: ScheduleContext | None, *, patient: bool) -> Held | None:
    """Lock the schedule whose occurrence a task is; ``None`` where it is none, or not the one that has begun.

    Raises:
        ScheduleLocked: another transaction has locked it, and the caller is not ``patient`` enough to wait for its end.
    """
    occurrence = occurrence_of(task.idempotency_key)
    if occurrence is None:
        return None
    locked = schedules.lock(connection, tables, occurrence.name, patient=patient)
    if locked is None or locked[0].task_id != task.id:
        return None
    row, now = locked
    try:
        definition = read_definition(row.definition)
    except InvalidArgument as error:
        # The end of the run must be recorded in any case; a node that can read the schedule lets it go on.
        _logger.warning("schedule %r: %s", row.name, error)
        return None
    return Held(occurrence, row, now, definition, context)


def decide_occurrence(
    held: Held, task: Claimed, ending: Ending, *, own: RetryPolicy, cancel_requested: bool, rng: random.Random
) -> Outcome:
    """Decide what becomes of an occurrence: its schedule's failure setting, and no retry after the next regular time.

    Args:
        own: the policy of the task's type, for a stored schedule without a setting of its own.
    """
    policy: Backoff | RetryPolicy = held.definition.on_failure or (Backoff.none() if held.row.source == CODE else own)
    most = policy.max_attempts if task.max_attempts is None else task.max_attempts
    if isinstance(ending, Orphaned):
        policy, most = _AT_ONCE, None if most is None else max(most, RUNS_OF_LOST_NODES)
    if held.row.paused_at is not None and not held.occurrence.by_hand:
        policy, most = _AT_ONCE, task.attempts

    def decided(max_attempts: int | None) -> Outcome:
        return decide(
            ending,
            attempts=task.attempts,
            max_attempts=max_attempts,
            policy=policy,
            cancel_requested=cancel_requested,
            rng=rng,
        )

    outcome = decided(most)
    if outcome.verdict is not Verdict.RETRIED or isinstance(ending, Orphaned):
        return outcome
    regular = held.wanted or (held.row.next_at if isinstance(held.definition.timing, Cron) else None)
    if regular is None or (outcome.delay or 0.0) < (regular - held.now).total_seconds():
        return outcome
    return decided(task.attempts)


def end_occurrence(connection: sa.Connection, dialect: Dialect, held: Held, task: Claimed, outcome: Outcome) -> Outcome:
    """Tell the schedule how a run has ended, in the transaction that records it; return the outcome with what follows. Never commits."""
    # What is measured from the end of the run is measured from the one that its task has.
    held = replace(held, now=schedules.ended_at(connection, dialect.tables, task.id) or held.now)
    values: dict[str, Any] = {}
    if outcome.verdict not in (Verdict.SNOOZED, Verdict.RELEASED):
        values = _counted(held, task, succeeded=outcome.verdict is Verdict.SUCCEEDED)
    next_at: datetime | None
    if outcome.status in LIVE:
        next_at = None if outcome.delay is None else later(held.now, outcome.delay)
    else:
        next_at = _next_at(held)
        values |= begin_requested(connection, dialect, held.row, held.definition, held.now)
        values["next_at"] = next_at
    if values:
        schedules.write(connection, dialect.tables, held.row.name, **values)
    if values.get("task_id") is not None:
        next_at = held.now
    return replace(outcome, occurrence=OccurrenceEnd(held.occurrence, next_at))


def _counted(held: Held, task: Claimed, *, succeeded: bool) -> dict[str, Any]:
    row = held.row
    values: dict[str, Any] = {"runs": row.runs + 1, "last_started_at": task.claimed_at, "last_ended_at": held.now}
    if not succeeded:
        return values | {"runs_since_success": row.runs_since_success + 1}
    values |= {"successes": row.successes + 1, "runs_since_success": 0, "last_success_at": held.now}
    if held.context is not None:
        values["state"] = held.context.state_text
    return values


def _next_at(held: Held) -> datetime | None:
    if held.wanted is not None:
        return held.wanted
    # Known since the occurrence began, or set by somebody since then.
    return held.definition.timing.after(held.now) if held.row.next_at is None else held.row.next_at

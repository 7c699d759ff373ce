"""Which tasks that have ended are removed, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..domain.errors import InvalidArgument
from ..domain.retention import Retention
from ..domain.states import ENDED, TaskStatus


@dataclass(frozen=True, slots=True)
class Rule:
    """Tasks with this status are removed so many seconds after their end."""

    status: TaskStatus
    kept_for: float
    archive: bool
    """Moved to the archive instead of deleted."""


def rules(retention: Retention, statuses: Sequence[TaskStatus] = (), older_than: float | None = None) -> tuple[Rule, ...]:
    """Return a rule for each status that the settings do not keep for ever, or for each of those that were asked for.

    Args:
        retention: the settings.
        statuses: without any, DEAD and FAILED tasks that are kept for ever stay: nobody deletes them by accident.
        older_than: seconds, instead of what the settings say.

    Raises:
        InvalidArgument: a status can not be pruned, or is kept for ever and no ``older_than`` was given.
    """
    made = []
    for status in statuses or sorted(ENDED):
        if status not in ENDED:
            raise InvalidArgument(f"a task that is {status} has not ended: only {', '.join(sorted(ENDED))} can be pruned")
        kept_for = retention.kept_for(status)
        if kept_for is None and statuses and older_than is None:
            raise InvalidArgument(f"the setting RETENTION keeps {status} tasks for ever: say how old they must be (--older-than 30d)")
        if kept_for is not None or statuses:
            made.append(_rule(retention, status, kept_for if older_than is None else older_than))
    return tuple(made)


def _rule(retention: Retention, status: TaskStatus, kept_for: float | None) -> Rule:
    assert kept_for is not None
    deletes = status is TaskStatus.SUCCEEDED and retention.deletes_at_completion
    return Rule(status, kept_for, archive=retention.strategy == "archive" and not deletes)

"""The states of a task and the one table of what may follow what."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class TaskStatus(StrEnum):
    """Where a task stands in its life."""

    PENDING = "PENDING"
    """Waits. *Due* once ``available_at`` has come, *scheduled* before. A claim moves it on, a cancel ends it."""
    RUNNING = "RUNNING"
    """Claimed by one node; the claim has raised ``attempts`` and ``claims``."""
    SUCCEEDED = "SUCCEEDED"
    """Done. Retention removes it."""
    FAILED = "FAILED"
    """Ended by an error that no retry can mend: a ``Reject``, a payload that can not be read."""
    DEAD = "DEAD"
    """Attempts exhausted; errors, timeouts and lost leases all count."""
    CANCELLED = "CANCELLED"
    """Cancelled by a person or the code."""


TRANSITIONS: Mapping[TaskStatus, frozenset[TaskStatus]] = MappingProxyType(
    {
        TaskStatus.PENDING: frozenset({TaskStatus.RUNNING, TaskStatus.CANCELLED}),
        TaskStatus.RUNNING: frozenset(TaskStatus) - {TaskStatus.RUNNING},
        TaskStatus.SUCCEEDED: frozenset(),
        TaskStatus.FAILED: frozenset({TaskStatus.PENDING}),
        TaskStatus.DEAD: frozenset({TaskStatus.PENDING}),
        TaskStatus.CANCELLED: frozenset({TaskStatus.PENDING}),
    }
)
"""From each status, those that may follow. Deletion is no transition: every status but RUNNING may be deleted."""

LIVE = frozenset({TaskStatus.PENDING, TaskStatus.RUNNING})
"""Not ended: ``finished_at`` is null exactly for these."""

ENDED = frozenset(TaskStatus) - LIVE

RETRYABLE = frozenset(status for status in ENDED if TaskStatus.PENDING in TRANSITIONS[status])
"""May be put back to PENDING by hand."""

DELETABLE = frozenset(TaskStatus) - {TaskStatus.RUNNING}

"""What a person or the code does to a single task, inside the caller's transaction."""

from __future__ import annotations

import sqlalchemy as sa

from ..domain.errors import TaskNotFound, TaskStateError
from ..domain.states import DELETABLE, LIVE, RETRYABLE, TaskStatus
from ..store import tasks
from ..store.tables import Tables

_TRIES = 3


def retry(connection: sa.Connection, tables: Tables, task_id: int, *, reset_attempts: bool = False) -> None:
    """Put an ended task back to PENDING, due now; an exhausted one runs at least once more. Never commits.

    Raises:
        TaskNotFound: no such task.
        TaskStateError: it is neither DEAD, FAILED nor CANCELLED.
    """
    c = tables.task.c
    one = sa.and_(c.id == task_id, c.status.in_([status.value for status in RETRYABLE]))
    if tasks.requeue(connection, tables, one, reset_attempts=reset_attempts) == 0:
        raise _refusal(connection, tables, task_id, "retried", RETRYABLE)


def retry_dead(connection: sa.Connection, tables: Tables, task_type: str | None = None, *, reset_attempts: bool = False) -> int:
    """Put all DEAD tasks, or those of one type, back to PENDING; return how many. Never commits."""
    c = tables.task.c
    where = [c.status == TaskStatus.DEAD.value] + ([c.type == task_type] if task_type is not None else [])
    return tasks.requeue(connection, tables, sa.and_(*where), reset_attempts=reset_attempts)


def cancel(connection: sa.Connection, tables: Tables, task_id: int) -> TaskStatus:
    """Cancel a task: at once while it waits, else by a request to the node that runs it. Never commits.

    Returns:
        CANCELLED, or RUNNING where the handler has been asked to end.

    Raises:
        TaskNotFound: no such task.
        TaskStateError: it has already ended.
    """
    for _ in range(_TRIES):  # a claim or the end of an attempt may come between the two statements
        if tasks.cancel_pending(connection, tables, task_id):
            return TaskStatus.CANCELLED
        if tasks.request_cancel(connection, tables, task_id):
            return TaskStatus.RUNNING
        held = tasks.holding(connection, tables, task_id)
        if held is None or held[1] not in LIVE:
            break
    raise _refusal(connection, tables, task_id, "cancelled", LIVE)


def delete(connection: sa.Connection, tables: Tables, task_id: int) -> None:
    """Remove a task and its failed attempts. Never commits.

    Raises:
        TaskNotFound: no such task.
        TaskStateError: it is RUNNING; cancel it first.
    """
    if not tasks.delete(connection, tables, task_id):
        raise _refusal(connection, tables, task_id, "deleted", DELETABLE)


def _refusal(
    connection: sa.Connection, tables: Tables, task_id: int, verb: str, allowed: frozenset[TaskStatus]
) -> TaskNotFound | TaskStateError:
    held = tasks.holding(connection, tables, task_id)
    if held is None:
        return TaskNotFound(task_id)
    return TaskStateError(task_id, held[1], verb, " or ".join(sorted(allowed)))

"""Pausing a type, or everything, in the whole cluster."""

from __future__ import annotations

import sqlalchemy as sa

from ..domain.errors import InvalidArgument
from ..store.clock import db_now
from ..store.dialects.base import Dialect
from .registry import type_fault

EVERYTHING = "*"
"""In the place of a type: all of them."""
_LONGEST_NAME = 255


def pause(
    connection: sa.Connection, dialect: Dialect, task_type: str = EVERYTHING, *, reason: str | None = None, by: str | None = None
) -> None:
    """Let no task of a type begin anywhere from the commit on, in the caller's transaction; what runs goes on. Never commits.

    Paused again, it stays paused since the first time, with the new reason.

    Raises:
        InvalidArgument: there can be no such type.
    """
    fault = None if task_type == EVERYTHING else type_fault(task_type)
    if fault is not None:
        raise InvalidArgument(fault)
    p = dialect.tables.type
    values = {"paused_by": None if by is None else by[:_LONGEST_NAME], "pause_reason": reason}
    dialect.insert_absent(connection, p, {"type": task_type})
    connection.execute(sa.update(p).where(p.c.type == task_type).values(paused_at=sa.func.coalesce(p.c.paused_at, db_now()), **values))


def resume(connection: sa.Connection, dialect: Dialect, task_type: str = EVERYTHING) -> bool:
    """End a pause in the caller's transaction, and wake the workers when it commits; return whether there was one. Never commits.

    To resume everything leaves the pauses of single types.
    """
    p = dialect.tables.type
    ended = sa.update(p).where(p.c.type == task_type, p.c.paused_at.is_not(None))
    if connection.execute(ended.values(paused_at=None, paused_by=None, pause_reason=None)).rowcount == 0:
        return False
    dialect.wake(connection)
    return True

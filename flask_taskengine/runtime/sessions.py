"""What the engine watches of the sessions that handlers use: their connections, and each commit before it happens."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from ..domain.errors import LeaseLostError
from ..store import tasks
from .host import Host
from .run import Run, current


def used_session(host: Host, run: Run) -> Session | None:
    """Return the session of the running handler if it was used: its completion belongs into that transaction."""
    registry = host.database().session.registry
    if not registry.has():
        return registry() if run.committed else None
    session: Session = registry()
    used = run.committed or session.in_transaction() or session.new or session.dirty or session.deleted
    return session if used else None


def fence(host: Host, session: Session, run: Run) -> None:
    """Let a commit of the handler pass only while its attempt holds the task.

    Raises:
        LeaseLostError: it does not any more.
    """
    connection = session.connection()
    if run.abandoned or not tasks.hold(connection, host.dialect(connection.dialect.name).tables, run.task.id, run.task.claims):
        raise LeaseLostError(run.task.id)


def _after_begin(session: Session, transaction: SessionTransaction, connection: sa.Connection) -> None:
    run = current.get()
    if run is not None:
        run.uses(connection.connection.driver_connection)


def _before_commit(session: Session) -> None:
    run = current.get()
    if run is None or run.completing:
        return
    host: Host = run.host
    registry = host.database().session.registry
    if registry.has() and registry() is session and session.in_transaction():
        run.committed = True
        fence(host, session, run)


# On the class, where a web request pays for one look at a context variable.
_listeners: dict[str, Any] = {"after_begin": _after_begin, "before_commit": _before_commit}
for _name, _listener in _listeners.items():
    event.listen(Session, _name, _listener)

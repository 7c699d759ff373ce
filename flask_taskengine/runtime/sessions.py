"""What the engine watches of a handler: the connections that it holds, and each commit of its session before it happens."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, Pool

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


def _on_checkout(driver: Any, _record: object, _proxy: object) -> None:
    run = current.get()
    if run is not None:
        run.takes(driver)


def _on_checkin(driver: Any, record: ConnectionPoolEntry) -> None:
    run = current.get()
    if run is not None and driver is not None and run.gives_back(driver):
        record.invalidate()


def _on_invalidate(driver: Any, _record: object, _error: object) -> None:
    run = current.get()
    if run is not None:
        run.gives_back(driver)


def _before_commit(session: Session) -> None:
    run = current.get()
    if run is None or run.completing:
        return
    host: Host = run.host
    registry = host.database().session.registry
    if registry.has() and registry() is session and session.in_transaction():
        run.committed = True
        # First, so that what is checked afterwards stays so: the database's one writer, where it has only one, is this one then.
        session.flush()
        fence(host, session, run)


# On the classes, where a web request pays for one look at a context variable.
event.listen(Session, "before_commit", _before_commit)
_listeners: dict[str, Any] = {"checkout": _on_checkout, "checkin": _on_checkin, "invalidate": _on_invalidate}
for _name, _listener in _listeners.items():
    event.listen(Pool, _name, _listener)

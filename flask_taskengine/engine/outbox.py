"""What a session has enqueued and not yet committed: announced after the commit, warned about when it is thrown away."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

_KEY = "flask_taskengine.outbox"
_logger = logging.getLogger("flask_taskengine")

Announce = Callable[[list[tuple[int, str]]], None]


@dataclass(slots=True)
class _Noted:
    transaction: SessionTransaction | None
    task_id: int
    task_type: str
    announce: Announce


def note(session: Session, created: list[tuple[int, str]], announce: Announce) -> None:
    """Remember tasks (id, type) that were written in the session's transaction; ``announce`` gets them once it has committed."""
    inside = session.get_nested_transaction() or session.get_transaction()
    noted = session.info.setdefault(_KEY, [])
    noted.extend(_Noted(inside, task_id, task_type, announce) for task_id, task_type in created)


def discard(session: Session) -> None:
    """Forget what the session has enqueued: its transaction is rolled back on purpose."""
    session.info.pop(_KEY, None)


def _after_commit(session: Session) -> None:
    noted: list[_Noted] | None = session.info.pop(_KEY, None)
    if not noted:
        return
    for announce in dict.fromkeys(entry.announce for entry in noted):
        announce([(entry.task_id, entry.task_type) for entry in noted if entry.announce == announce])


def _after_rollback(session: Session) -> None:
    noted: list[_Noted] | None = session.info.get(_KEY)
    rolled_back = session.get_nested_transaction() or session.get_transaction()
    if noted and rolled_back is not None:
        session.info[_KEY] = [entry for entry in noted if not _inside(entry.transaction, rolled_back)]


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    noted: list[_Noted] | None = session.info.get(_KEY)
    if not noted:
        return
    if transaction.parent is not None:
        for entry in noted:
            if entry.transaction is transaction:
                entry.transaction = transaction.parent
        return
    discard(session)
    ids = ", ".join(str(entry.task_id) for entry in noted[:5]) + (", …" if len(noted) > 5 else "")
    _logger.warning(
        "%d enqueued task(s) are lost (%s, first of type %r): the session was closed without a commit; call db.session.commit()",
        len(noted),
        ids,
        noted[0].task_type,
    )


def _inside(transaction: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while transaction is not None:
        if transaction is outer:
            return True
        transaction = transaction.parent
    return False


# On the class: a listener for every new session would cost each request more than the enqueue itself.
_listeners: dict[str, Any] = {
    "after_commit": _after_commit,
    "after_rollback": _after_rollback,
    "after_transaction_end": _after_end,
}
for _name, _listener in _listeners.items():
    event.listen(Session, _name, _listener)

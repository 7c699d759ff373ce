"""What was done in a session's transaction and is announced once that has committed; a warning where it is thrown away."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

_KEY = "flask_taskengine.outbox"
_logger = logging.getLogger("flask_taskengine")


@dataclass(slots=True)
class _Noted:
    transaction: SessionTransaction | None
    announce: Callable[[], None]
    created: Sequence[tuple[int, str]]


def note(session: Session, announce: Callable[[], None], created: Sequence[tuple[int, str]] = ()) -> None:
    """Remember what was done in the session's transaction.

    Args:
        announce: called once the transaction has committed, and never if it does not.
        created: the tasks (id, type) that were written; losing them by a forgotten commit is worth a warning.
    """
    inside = session.get_nested_transaction() or session.get_transaction()
    session.info.setdefault(_KEY, []).append(_Noted(inside, announce, created))


def discard(session: Session) -> None:
    """Forget what was done in the session: its transaction is rolled back on purpose."""
    session.info.pop(_KEY, None)


def _after_commit(session: Session) -> None:
    if session.get_nested_transaction() is not None:
        return  # The release of a savepoint, which commits nothing.
    noted: list[_Noted] = session.info.pop(_KEY, ())
    for entry in noted:
        entry.announce()


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
    lost = [task for entry in noted for task in entry.created]
    # An error on its way through is why there was no commit.
    if lost and not isinstance(sys.exc_info()[1], Exception):
        _warn(lost)


def _warn(lost: list[tuple[int, str]]) -> None:
    ids = ", ".join(str(task_id) for task_id, _ in lost[:5]) + (", …" if len(lost) > 5 else "")
    _logger.warning(
        "%d enqueued task(s) are lost (%s, first of type %r): the session was closed without a commit; call db.session.commit()",
        len(lost),
        ids,
        lost[0][1],
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

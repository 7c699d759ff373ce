"""What the code of an app does to tasks that exist, and to the queue."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from blinker import NamedSignal
from sqlalchemy.orm import Session, scoped_session

from .domain.states import TaskStatus
from .domain.task import Task
from .engine import explain as explaining
from .engine import manage, outbox, pausing
from .engine.explain import Explanation
from .runtime.host import Host
from .signals import task_cancelled, task_requeued
from .store import tasks
from .store.dialects.base import Dialect

Where = scoped_session[Any] | Session | sa.Connection


class ManagingVerbs:
    """Verbs of the ``TaskEngine``; each works on the caller's transaction and none commits."""

    def _host(self) -> Host:
        raise NotImplementedError

    def _target(self, host: Host, session: Where | None) -> tuple[Session | sa.Connection, sa.Connection, Dialect]:
        raise NotImplementedError

    def get(self, task_id: int, *, session: Where | None = None) -> Task | None:
        """Read a task in the caller's transaction; None where there is no such task."""
        _, connection, dialect = self._target(self._host(), session)
        return tasks.get(connection, dialect.tables, task_id)

    def explain(self, task_id: int, *, session: Where | None = None) -> Explanation:
        """Say in words why a task is not running, or what state it is in; reads only, in the caller's transaction. Never commits.

        Raises:
            TaskNotFound: no such task.
        """
        host = self._host()
        _, connection, dialect = self._target(host, session)
        return explaining.explain(connection, dialect, host.settings, host.registry, task_id)

    def retry(self, task_id: int, *, reset_attempts: bool = False, session: Where | None = None) -> None:
        """Put a DEAD, FAILED or CANCELLED task back to PENDING; an exhausted one runs at least once more. Never commits.

        Raises:
            TaskNotFound: no such task.
            TaskStateError: it has another status.
        """
        target, connection, dialect = self._target(self._host(), session)
        manage.retry(connection, dialect.tables, task_id, reset_attempts=reset_attempts)
        self._announce_later(target, dialect, task_requeued, task_id, reason="retry", duration=None)

    def cancel(self, task_id: int, *, session: Where | None = None) -> TaskStatus:
        """Cancel a task in the caller's transaction; a running one is asked to end and stays RUNNING until it has. Never commits.

        Returns:
            CANCELLED, or RUNNING where the handler has yet to end.

        Raises:
            TaskNotFound: no such task.
            TaskStateError: it has already ended.
        """
        target, connection, dialect = self._target(self._host(), session)
        status = manage.cancel(connection, dialect.tables, task_id)
        if status is TaskStatus.RUNNING:
            dialect.wake(connection)  # The node that runs it looks for cancel requests too.
        else:
            self._announce_later(target, dialect, task_cancelled, task_id, duration=None)
        return status

    def _announce_later(self, target: Where, dialect: Dialect, signal: NamedSignal, task_id: int, **fields: Any) -> None:
        """Announce what was done to a task once the session's transaction has committed."""
        host = self._host()
        if not host.hears(signal) or not isinstance(target, Session):
            return
        task = tasks.get(target.connection(), dialect.tables, task_id)
        if task is not None:
            fields |= {"task_id": task_id, "task_type": task.type, "attempt": task.attempts, "token": task.claims, "node": None}
            outbox.note(target, lambda: host.announce(signal, **fields))

    def delete(self, task_id: int, *, session: Where | None = None) -> None:
        """Remove a task that is not RUNNING, in the caller's transaction. Never commits.

        Raises:
            TaskNotFound: no such task.
            TaskStateError: it is RUNNING.
        """
        _, connection, dialect = self._target(self._host(), session)
        manage.delete(connection, dialect.tables, task_id)

    # --- the queue ----------------------------------------------------------------------------------------------------

    def pause(
        self, task_type: str = pausing.EVERYTHING, *, reason: str | None = None, by: str | None = None, session: Where | None = None
    ) -> None:
        """Let no task of a type, or none at all, begin anywhere once this has committed; what runs goes on. Never commits.

        Args:
            task_type: by default all types.
            reason: why, for whoever looks.
            by: who has done it.
        """
        _, connection, dialect = self._target(self._host(), session)
        pausing.pause(connection, dialect, task_type, reason=reason, by=by)

    def resume(self, task_type: str = pausing.EVERYTHING, *, session: Where | None = None) -> bool:
        """End a pause; return whether there was one. The pauses of single types outlast that of everything. Never commits."""
        host = self._host()
        target, connection, dialect = self._target(host, session)
        ended = pausing.resume(connection, dialect, task_type)
        if ended and isinstance(target, Session):
            outbox.note(target, host.wake)
        return ended

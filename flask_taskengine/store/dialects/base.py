"""What every database answers and does; a subclass overrides what differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import sqlalchemy as sa

from ...domain.task import Claimed, NewTask, Task
from .. import gauges
from ..gauges import QueueState
from ..lowwater import LowWater
from ..retention import Batch, Removed, remove_in_steps
from ..tables import Names, Tables
from ..vitals import Depth, Vitals, counted_depth

MOST_STEPS = 1000
"""Priorities that are looked at where tasks before another are counted."""
KEY_WAIT = 2.0
"""Seconds that an enqueue waits for another open transaction which holds the same idempotency key."""


class KeyHeld(Exception):
    """The idempotency key can not be written now; the caller's transaction is still usable."""


class Listener(Protocol):
    """Waits for wake-ups on a connection of its own, which does nothing else."""

    mode: ClassVar[str]
    """How it learns of a wake-up, in a word for the log."""

    def wait(self, timeout: float) -> bool:
        """Wait for a wake-up, at most ``timeout`` seconds; errors say that the connection is lost."""

    def close(self) -> None:
        """Close the connection, from any thread; a ``wait`` in another thread ends at once."""


class Dialect(ABC):
    """The statements that are written by hand, for one database and one set of tables."""

    name: ClassVar[str]
    wakes_across_network: ClassVar[bool] = False
    """Whether the database itself can wake a sleeping worker."""
    connect_limits: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """What a worker's own connections add to the driver's ``connect``, unless the host's say otherwise: no try may last for ever."""
    begin: ClassVar[str]
    """Begins one of the engine's own transactions, whatever isolation the host has set."""

    def __init__(self, names: Names) -> None:
        self.tables = Tables(names)
        preparer = self.sqlalchemy_dialect().identifier_preparer
        self.task, self.node, self.type = (preparer.format_table(t) for t in (self.tables.task, self.tables.node, self.tables.type))

    @staticmethod
    @abstractmethod
    def sqlalchemy_dialect() -> sa.Dialect:
        """Return the SQLAlchemy dialect that quotes names and compiles for this database."""

    @abstractmethod
    def insert(self, connection: sa.Connection, new: NewTask) -> int:
        """Write one task that has no idempotency key; return its id."""

    @abstractmethod
    def insert_many(self, connection: sa.Connection, news: Sequence[NewTask]) -> list[int | None]:
        """Write tasks; ``None`` in place of each whose idempotency key exists, in the table or earlier in the list.

        Those without a key get their ids in the order of the list. With keys, only inside ``guard_keys``.
        """

    @abstractmethod
    def guard_keys(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Bound the wait for idempotency keys that other open transactions hold.

        Raises:
            KeyHeld: the block waited in vain; nothing of it is written, the caller's transaction is still usable.
        """

    def insert_absent(self, connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> bool:
        """Write a row whose primary key may exist, also in a transaction that has yet to commit; return whether it was written."""
        try:
            with connection.begin_nested():
                connection.execute(sa.insert(table).values(**values))
        except sa.exc.IntegrityError:
            return False
        return True

    @abstractmethod
    def claim(
        self, connection: sa.Connection, node: str, rooms: Mapping[str, int], most: int, low_water: LowWater | None = None
    ) -> list[Claimed]:
        """Claim due tasks for a node, in the order in which they are to start.

        Args:
            rooms: for each type that may be claimed, how many of it.
            most: how many in all.
            low_water: where to begin, for a database whose index keeps what is dead; it takes note of the claim.
        """

    @abstractmethod
    def complete(self, connection: sa.Connection, task_id: int, claims: int, result: str | None) -> bool:
        """Mark one task as SUCCEEDED, if the attempt still holds it and nobody asked to cancel it."""

    @abstractmethod
    def complete_many(self, connection: sa.Connection, done: Sequence[tuple[int, int, str | None]]) -> set[int]:
        """Mark tasks as SUCCEEDED, given (id, claims, result); return the ids of those that still were this attempt's.

        A task with a cancel request is left alone: its outcome is not SUCCEEDED.
        """

    @abstractmethod
    def seconds_to_due(self, connection: sa.Connection, types: Sequence[str], low_water: LowWater | None = None) -> dict[str, float]:
        """Return for each type with PENDING tasks the seconds until its earliest is due, negative where it is overdue; no paused ones.

        Args:
            types: those to look for.
            low_water: where to begin, as in a claim; what stands below is then not seen.
        """

    @abstractmethod
    def pending_types(self, connection: sa.Connection) -> dict[str, float]:
        """Return every type with PENDING tasks, paused or not, and the seconds until its earliest is due."""

    @abstractmethod
    def payload_has(self, path: Sequence[str], value: Any) -> sa.ColumnElement[bool]:
        """Return the condition that the value at this path inside the payload is this one: a text, number, boolean or None."""

    @abstractmethod
    def ahead(self, connection: sa.Connection, task: Task, types: Sequence[str], most: int) -> int:
        """Count the due tasks of these types that are claimed before a PENDING task; at most ``most``."""

    def depth(self, connection: sa.Connection) -> Depth:
        """Count the tasks of each status, or estimate where there are very many."""
        return counted_depth(connection, self.tables)

    def vitals(self, connection: sa.Connection) -> Vitals:
        """Read what the database knows of its own health; needs no special right, and says less without it."""
        return Vitals()

    def queue_state(self, connection: sa.Connection, lease: float) -> QueueState:
        """Measure the queue by one statement; of each type at most ``MOST_COUNTED`` PENDING tasks are counted, and no ended ones.

        Args:
            lease: seconds of silence after which a node counts no more.
        """
        return gauges.state_of(tuple(row) for row in connection.execute(gauges.statement(self.tables, lease)))

    def prune(self, connection: sa.Connection, batch: Batch) -> Removed:
        """Remove tasks that have ended, but none that another transaction has locked; in the caller's transaction."""
        return remove_in_steps(connection, self.tables, batch)

    def prepare(self, engine: sa.Engine, *, tune: bool) -> None:  # noqa: B027 - most databases need nothing
        """Set up the host's own engine, before it connects; ``tune`` is the setting ``SQLITE_PRAGMAS``.

        Raises:
            ConfigError: the engine's driver is not supported.
        """

    def isolates_single_statements(self, connection: sa.Connection) -> bool:
        """Say whether the server isolates a statement that commits for itself more strictly than the engine's statements are made for."""
        return False

    def require_shared(self, url: sa.URL) -> None:  # noqa: B027 - a server is shared by its nature
        """Make sure that another process can see the database.

        Raises:
            ConfigError: it can not.
        """

    def doubts(self, connection: sa.Connection) -> Sequence[str]:
        """Return what about this database makes workers slow or unsafe, one sentence each, its remedy after a colon; reads only."""
        return ()

    def commits_by_itself(self, connection: sa.Connection) -> bool:
        """Say whether each statement on a connection that is in use commits at once, so that nothing can be rolled back."""
        return False

    @abstractmethod
    def cancel_statement(self, driver: Any) -> None:
        """Cancel the statement that a driver connection is in, from another thread; returns once nothing can be hit by it any more."""

    @abstractmethod
    def listener(self, engine: sa.Engine, url: str | None) -> Listener:
        """Open what wakes a sleeping worker.

        Args:
            engine: makes the connection, unless there is a ``url``.
            url: the address of the database itself, where the app's leads to a pooler.
        """

    @abstractmethod
    def sever(self, driver: Any) -> None:
        """End the statement that a driver connection is in, from another thread, even where the network is gone."""

    def wait_shortly(self, connection: sa.Connection) -> None:  # noqa: B027 - a server lets others write beside a long transaction
        """Let statements on this connection fail soon where another transaction has the lock on the whole database."""

    def lock_limits(self, connection: sa.Connection, types: Sequence[str]) -> None:  # noqa: B027 - a single writer needs no lock
        """Hold until the end of the transaction the right to claim tasks of these cluster-limited types."""

    def wake(self, connection: sa.Connection) -> None:  # noqa: B027 - without notifications the poll does the work
        """Wake sleeping workers when the transaction commits."""

"""The transaction of a request, apart from the app's own session, which the guard may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ..access import Pass, audit
from ..runtime.host import Host
from ..store import nodes
from ..store.dialects.base import Dialect


@dataclass(frozen=True, slots=True)
class Work:
    """Where a request does its work, and for whom."""

    host: Host
    session: Session
    admitted: Pass

    @property
    def engine(self) -> Any:
        """The ``TaskEngine``."""
        return self.host.sender

    @property
    def connection(self) -> sa.Connection:
        """That of the session."""
        return self.session.connection()

    @property
    def dialect(self) -> Dialect:
        """The statements for its database."""
        return self.host.dialect(self.connection.dialect.name)

    def now(self) -> datetime:
        """Read the database's clock."""
        return nodes.now(self.connection)

    def audit(self, action: str, what: object) -> None:
        """Write who does what, which becomes true with the commit."""
        audit(self.admitted.who, action, str(what))

    def commit(self) -> None:
        """Commit, and begin another transaction with the next statement."""
        self.session.commit()


@contextmanager
def work(host: Host, admitted: Pass) -> Iterator[Work]:
    """Give a transaction that commits at the end and rolls back on an error."""
    with Session(host.sql_engine()) as session:
        yield Work(host, session, admitted)
        session.commit()

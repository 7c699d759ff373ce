"""The one statement of an enqueue, which goes to the driver itself where nobody follows statements."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.shop import Shop


def test_who_follows_statements_sees_it(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Listeners of the engine, of one connection and the log get the INSERT like any other statement."""
    with shop.app.app_context():
        seen: list[str] = []

        def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            seen.append(statement)

        sa.event.listen(shop.db.engine, "before_cursor_execute", note)
        shop.engine.enqueue("a")
        shop.db.session.commit()
        sa.event.remove(shop.db.engine, "before_cursor_execute", note)
        assert [one.split()[0] for one in seen] == ["INSERT"]
        caplog.set_level(logging.INFO, "sqlalchemy.engine.Engine")
        shop.engine.enqueue("a")
        shop.db.session.commit()
        assert any("INSERT INTO" in message for message in caplog.messages)


def test_an_error_is_that_of_sqlalchemy(shop: Shop) -> None:
    """What the database refuses comes as it does from every statement of the session, and a broken connection is not used again."""
    with shop.app.app_context():
        shop.engine.enqueue("a")
        shop.db.session.commit()
        pid = shop.db.session.scalar(sa.text("SELECT pg_backend_pid()"))
        with shop.outside.connect() as connection:
            connection.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        with pytest.raises(sa.exc.OperationalError) as lost:
            shop.engine.enqueue("a")
        assert lost.value.connection_invalidated
        assert "INSERT INTO" in str(lost.value.statement)
        shop.db.session.rollback()
        shop.engine.enqueue("a")
        shop.db.session.commit()
        shop.db.session.execute(sa.text("SET TRANSACTION READ ONLY"))
        with pytest.raises(sa.exc.InternalError, match="read-only"):
            shop.engine.enqueue("a")
        shop.db.session.rollback()
    assert len(shop.tasks()) == 2


def test_a_plain_connection_begins_as_always(shop: Shop) -> None:
    """On a Connection of the caller's nothing is written before the caller commits."""
    with shop.app.app_context(), shop.db.engine.connect() as connection:
        shop.engine.enqueue("a", {"n": 1}, session=connection)
        assert connection.in_transaction()
        connection.rollback()
        shop.engine.enqueue("a", {"n": 2}, priority=3, max_attempts=2, session=connection)
        connection.commit()
    (task,) = shop.tasks()
    assert (task.payload, task.priority, task.max_attempts) == ({"n": 2}, 3, 2)

"""What a session has enqueued: announced after its commit, warned about where it is thrown away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from flask_taskengine.engine import outbox
from tests.support.shop import Base, Effect


class RefusedError(Exception):
    """What an app raises."""


@pytest.fixture
def session() -> Iterator[Session]:
    """Return a session on a database in memory."""
    engine = sa.create_engine("sqlite://")
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture
def announced() -> list[int]:
    """Return the list that gets the ids of announced tasks."""
    return []


@pytest.fixture
def enqueue(session: Session, announced: list[int]) -> Callable[..., None]:
    """Return a function that notes tasks in the session's transaction."""

    def enqueue(*ids: int, session: Session = session) -> None:
        session.execute(sa.text("SELECT 1"))
        outbox.note(session, lambda: announced.extend(ids), [(i, "email") for i in ids])

    return enqueue


Enqueue = Callable[..., None]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings that were logged."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_commit_announces_in_order_and_once(session: Session, enqueue: Enqueue, announced: list[int]) -> None:
    """Nothing is announced before the commit, and nothing again by a later one."""
    enqueue(1, 2)
    enqueue(3)
    assert announced == []
    session.commit()
    assert announced == [1, 2, 3]
    enqueue(4)
    session.commit()
    session.commit()
    assert announced == [1, 2, 3, 4]


def test_the_release_of_a_savepoint_announces_nothing(session: Session, enqueue: Enqueue, announced: list[int]) -> None:
    """Only the transaction around it decides, which may still be rolled back."""
    with session.begin_nested():
        enqueue(1)
        with session.begin_nested():
            enqueue(2)
        assert announced == []
    assert announced == []
    session.rollback()
    session.commit()
    assert announced == []


def test_savepoints_are_announced_with_their_transaction(session: Session, enqueue: Enqueue, announced: list[int]) -> None:
    """Released ones are, rolled back ones are not, to any depth."""
    enqueue(1)
    with session.begin_nested():
        enqueue(2)
        with suppress(RefusedError), session.begin_nested():
            enqueue(3)
            with session.begin_nested():
                enqueue(4)
            raise RefusedError
        with session.begin_nested():
            enqueue(5)
    outer = session.begin_nested()
    enqueue(6)
    session.begin_nested()
    enqueue(7)
    outer.rollback()
    enqueue(8)
    session.commit()
    assert announced == [1, 2, 5, 8]


def test_a_commit_to_the_root_releases_open_savepoints(session: Session, enqueue: Enqueue, announced: list[int]) -> None:
    """``session.commit()`` inside an open savepoint commits everything."""
    enqueue(1)
    session.begin_nested()
    enqueue(2)
    session.commit()
    assert announced == [1, 2]


def test_a_rollback_announces_nothing_and_warns_of_nothing(
    session: Session, enqueue: Enqueue, announced: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """It is done on purpose."""
    enqueue(1)
    session.rollback()
    with session.begin_nested() as savepoint:
        enqueue(2)
        savepoint.rollback()
    session.commit()
    session.close()
    assert announced == []
    assert warnings_in(caplog) == []


def test_a_failed_flush_is_a_rollback(session: Session, enqueue: Enqueue, announced: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """What its savepoint, or its transaction, has enqueued is gone; the session's own error is the only message."""
    Base.metadata.create_all(session.connection())
    enqueue(1)
    savepoint = session.begin_nested()
    enqueue(2)
    session.add_all([Effect(name="same"), Effect(name="same")])
    with pytest.raises(sa.exc.IntegrityError):
        session.flush()
    savepoint.rollback()
    session.commit()
    assert announced == [1]
    enqueue(3)
    session.add_all([Effect(name="same"), Effect(name="same")])
    with pytest.raises(sa.exc.IntegrityError):
        session.flush()
    session.close()
    assert announced == [1]
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("nested", [False, True])
def test_a_session_that_is_thrown_away_warns_once(
    session: Session, enqueue: Enqueue, announced: list[int], caplog: pytest.LogCaptureFixture, nested: bool
) -> None:
    """One warning with the number of tasks, the first ids, the type and the remedy; nothing is announced."""
    if nested:
        session.begin_nested()
    enqueue(*range(1, 5))
    enqueue(5, 6)
    session.close()
    session.close()
    assert announced == []
    (warning,) = warnings_in(caplog)
    assert warning.startswith("6 enqueued task(s) are lost (1, 2, 3, 4, 5, …, first of type 'email'): ")
    assert warning.endswith("the session was closed without a commit; call db.session.commit()")


def test_only_what_is_not_committed_is_warned_about(session: Session, enqueue: Enqueue, caplog: pytest.LogCaptureFixture) -> None:
    """A commit in between is no excuse for what comes after it."""
    enqueue(1)
    session.commit()
    enqueue(2)
    session.close()
    assert ["1 enqueued task(s) are lost (2, first" in warning for warning in warnings_in(caplog)] == [True]


def test_an_error_on_its_way_is_no_forgotten_commit(session: Session, enqueue: Enqueue, caplog: pytest.LogCaptureFixture) -> None:
    """The session of a block that raises is closed without a commit, as it should be."""
    with suppress(RefusedError), Session(session.get_bind()) as own:
        enqueue(1, session=own)
        raise RefusedError
    assert warnings_in(caplog) == []


def test_a_program_that_exits_has_forgotten_its_commit(session: Session, enqueue: Enqueue, caplog: pytest.LogCaptureFixture) -> None:
    """``sys.exit()`` at the end of a script is no error."""
    with suppress(SystemExit), Session(session.get_bind()) as own:
        enqueue(1, session=own)
        raise SystemExit(0)
    assert len(warnings_in(caplog)) == 1


def test_what_creates_no_task_is_announced_and_never_warned_about(
    session: Session, announced: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A cancel or a retry is announced in the same way, and its loss is no lost task."""
    session.execute(sa.text("SELECT 1"))
    outbox.note(session, lambda: announced.append(1))
    session.commit()
    outbox.note(session, lambda: announced.append(2))
    session.close()
    assert announced == [1]
    assert warnings_in(caplog) == []


def test_a_discarded_outbox_is_silent(session: Session, enqueue: Enqueue, announced: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """Whoever rolls back in another way says so beforehand."""
    enqueue(1)
    outbox.discard(session)
    session.invalidate()
    assert announced == []
    assert warnings_in(caplog) == []

"""R16 on PostgreSQL: open transactions that want the same key, in every isolation level."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from flask_taskengine import Enqueued, KeyBusyError, TaskEngine
from flask_taskengine.store.dialects import base
from flask_taskengine.store.migrations import migrate
from flask_taskengine.store.tables import Names
from tests.support.hosts import MakeApp
from tests.support.shop import Effect, Shop
from tests.support.waiting import wait_until

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Return threads for the other transaction."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a key that is held for a fifth of a second only."""
    monkeypatch.setattr(base, "KEY_WAIT", 0.2)


@contextmanager
def transaction(shop: Shop, level: str = "READ COMMITTED") -> Iterator[Session]:
    """Open a transaction with its snapshot taken; whatever is not committed is rolled back."""
    with shop.outside.connect().execution_options(isolation_level=level) as connection, Session(connection) as session:
        session.execute(sa.text("SELECT count(*) FROM taskengine_task"))
        yield session


def waits_for_a_lock(shop: Shop) -> bool:
    """Say whether some session of this database waits for another transaction."""
    return bool(shop.sql("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"))


def enqueue_while_held(shop: Shop, pool: ThreadPoolExecutor, session: Session) -> Future[Enqueued]:
    """Enqueue the key in a thread, and return once that waits for the transaction which holds it."""
    future = pool.submit(shop.engine.enqueue, "email", idempotency_key="k", session=session)
    wait_until(lambda: waits_for_a_lock(shop) or future.done(), what="the second enqueue to wait")
    return future


def assert_usable(session: Session, shop: Shop) -> None:
    """Write something else in the transaction, and commit it."""
    session.add(Effect(name="after"))
    assert shop.engine.enqueue("other", idempotency_key="another key", session=session).created is True
    session.commit()
    assert shop.effects() == ["after"]


# --- the first one ends while the second one waits ---------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_r16_the_first_commits(shop: Shop, pool: ThreadPoolExecutor, level: str) -> None:
    """READ COMMITTED finds the task; a snapshot that can not see it gets one clear error. Both can go on."""
    with transaction(shop) as first, transaction(shop, level) as second:
        made = shop.engine.enqueue("email", idempotency_key="k", session=first)
        future = enqueue_while_held(shop, pool, second)
        first.commit()
        if level == "READ COMMITTED":
            assert future.result(10) == Enqueued(made.id, created=False)
        else:
            with pytest.raises(KeyBusyError, match=r"'k': taken by a transaction that the snapshot .* roll back and run the whole"):
                future.result(10)
        assert_usable(second, shop)
    assert [task.idempotency_key for task in shop.tasks()] == ["k", "another key"]


@pytest.mark.parametrize("level", LEVELS)
def test_r16_the_first_rolls_back(shop: Shop, pool: ThreadPoolExecutor, level: str) -> None:
    """The second one's task is written, in every isolation level."""
    with transaction(shop) as first, transaction(shop, level) as second:
        shop.engine.enqueue("email", idempotency_key="k", session=first)
        future = enqueue_while_held(shop, pool, second)
        first.rollback()
        assert future.result(10).created is True
        assert_usable(second, shop)
    assert len(shop.tasks()) == 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("many", [False, True])
def test_r16_the_first_stays_open(shop: Shop, short_wait: None, level: str, many: bool) -> None:
    """After a bounded wait the second one is told so, once; nothing of its call is written, its transaction goes on."""
    with transaction(shop) as first, transaction(shop, level) as second:
        shop.engine.enqueue("email", idempotency_key="k", session=first)
        second.add(Effect(name="before"))
        entries = [{"type": "plain"}, {"type": "email", "idempotency_key": "a"}, {"type": "email", "idempotency_key": "k"}]
        begun = time.monotonic()
        with pytest.raises(KeyBusyError, match="another open transaction holds it: try again once that has ended") as caught:
            shop.engine.enqueue_many(entries if many else entries[2:], session=second)
        assert 0.15 <= time.monotonic() - begun < 2
        assert ("one of 2 keys" if many else "k") == caught.value.idempotency_key
        second.commit()
        assert shop.effects() == ["before"]
        assert shop.tasks() == []
        first.commit()
        again = shop.engine.enqueue("email", idempotency_key="k", session=second)
        assert again.created is False


@pytest.mark.parametrize("level", LEVELS)
def test_r16_the_first_has_committed_before(shop: Shop, level: str) -> None:
    """A snapshot that is older than the other's commit: READ COMMITTED finds the task, the others get the clear error."""
    with transaction(shop, level) as second:
        first_id = shop.enqueue("email", idempotency_key="k")
        if level == "READ COMMITTED":
            assert shop.engine.enqueue("email", idempotency_key="k", session=second).id == first_id
        else:
            with pytest.raises(KeyBusyError, match="run the whole transaction again"):
                shop.engine.enqueue("email", idempotency_key="k", session=second)
        assert_usable(second, shop)


@pytest.mark.parametrize("level", LEVELS)
def test_r16_a_key_that_the_snapshot_sees(shop: Shop, level: str) -> None:
    """The existing task is found in every isolation level."""
    first_id = shop.enqueue("email", idempotency_key="k")
    with transaction(shop, level) as session:
        assert shop.engine.enqueue("email", idempotency_key="k", session=session) == Enqueued(first_id, created=False)
        assert_usable(session, shop)


# --- more than one key --------------------------------------------------------------------------------------------------------


def test_r16_two_transactions_that_want_each_others_key(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """A deadlock over keys ends within the bounded wait: each gets its result or KeyBusyError, and both stay usable."""
    with transaction(shop) as first, transaction(shop) as second:
        shop.engine.enqueue("email", idempotency_key="a", session=first)
        shop.engine.enqueue("email", idempotency_key="b", session=second)
        futures = [
            pool.submit(shop.engine.enqueue, "email", idempotency_key=key, session=session)
            for key, session in (("b", first), ("a", second))
        ]
        errors = [future.exception(10) for future in futures]
        assert {type(error) for error in errors} == {KeyBusyError}
        first.commit()
        assert shop.engine.enqueue("email", idempotency_key="a", session=second).created is False
        second.commit()
    assert [task.idempotency_key for task in shop.tasks()] == ["a", "b"]


def test_r16_calls_with_the_same_keys_in_another_order_do_not_deadlock(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """Two calls with the same 400 keys at once, one the other way round: the later one finds what the earlier one wrote."""
    keys = [f"key {n}" for n in range(400)]
    barrier = threading.Barrier(2)

    def enqueue(keys: list[str]) -> list[Enqueued]:
        with Session(shop.outside) as session:
            session.connection()
            barrier.wait(10)
            made = shop.engine.enqueue_many([{"type": "email", "idempotency_key": key} for key in keys], session=session)
            session.commit()
        return made

    results = [future.result(20) for future in (pool.submit(enqueue, keys), pool.submit(enqueue, keys[::-1]))]
    assert [made.id for made in results[0]] == [made.id for made in results[1]][::-1]
    assert sorted({made.created for made in result} == {True} for result in results) == [False, True]
    assert len(shop.tasks()) == 400


# --- what an open transaction does not hinder ---------------------------------------------------------------------------------


def test_r16_an_open_transaction_delays_no_other_enqueue(shop: Shop, short_wait: None) -> None:
    """Only the same key waits: other keys, none, many and other verbs pass an open transaction that has enqueued."""
    with transaction(shop) as first, transaction(shop) as second:
        second.execute(sa.text("SET LOCAL lock_timeout = '10ms'"))
        shop.engine.enqueue("email", session=first)
        shop.engine.enqueue_many([{"type": "email"}, {"type": "email", "idempotency_key": "k"}], session=first)
        assert shop.engine.enqueue("email", session=second).created
        assert shop.engine.enqueue("email", idempotency_key="other", session=second).created
        many = shop.engine.enqueue_many([{"type": "email", "idempotency_key": f"{n}"} for n in range(10)], session=second)
        assert all(one.created for one in many)
        shop.engine.cancel(many[0].id, session=second)
        second.commit()
        first.commit()
    assert len(shop.tasks()) == 15


def test_r16_schemas_and_prefixes_are_independent(shop: Shop, make_app: MakeApp) -> None:
    """The same key in another schema, or under another prefix, is another key, also while a transaction holds it."""
    url = shop.outside.url.render_as_string(hide_password=False)
    engines: list[tuple[TaskEngine, Shop]] = []
    for names, config in (
        (Names(schema="elsewhere"), {"TASKENGINE_SCHEMA": "elsewhere"}),
        (Names(prefix="other_"), {"TASKENGINE_TABLE_PREFIX": "other_"}),
    ):
        migrate(shop.outside, names)
        app, db, engine = make_app(url, **config)
        engines.append((engine, Shop(app, db, engine, shop.outside)))
    with transaction(shop) as held:
        first = shop.engine.enqueue("email", idempotency_key="k", session=held)
        for engine, other in engines:
            with other.app.app_context():
                assert engine.enqueue("email", idempotency_key="k").created
                assert not engine.enqueue("email", idempotency_key="k").created
                other.db.session.commit()
            assert len(other.tasks()) == 1
        held.commit()
    assert [task.id for task in shop.tasks()] == [first.id]


# --- the host's lock_timeout ------------------------------------------------------------------------------------------------


def lock_timeout(session: Session) -> str:
    """Return the lock_timeout in force."""
    return str(session.execute(sa.text("SHOW lock_timeout")).scalar_one())


SETTINGS: dict[str, tuple[str, str]] = {
    "none": ("SELECT 1", "0"),
    "of the session": ("SET lock_timeout = '1234ms'", "1234ms"),
    "of the transaction": ("SET LOCAL lock_timeout = '4321ms'", "4321ms"),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("end", ["created", "found", "busy"])
def test_r16_lock_timeout_is_restored(shop: Shop, short_wait: None, setting: str, end: str) -> None:
    """After each outcome it is what the host has set, in this transaction and in the next one of the same connection."""
    statement, expected = SETTINGS[setting]
    if end == "busy":
        statement = statement.replace("1234ms", "123ms").replace("4321ms", "432ms")
        expected = expected.replace("1234ms", "123ms").replace("4321ms", "432ms")
    if end == "found":
        shop.enqueue("email", idempotency_key="k")
    with transaction(shop) as other, transaction(shop) as session:
        if end == "busy":
            shop.engine.enqueue("email", idempotency_key="k", session=other)
        session.execute(sa.text(statement))
        enqueue: Callable[[], Any] = lambda: shop.engine.enqueue("email", idempotency_key="k", session=session)  # noqa: E731
        if end == "busy":
            with pytest.raises(KeyBusyError):
                enqueue()
        else:
            assert enqueue().created is (end == "created")
        assert lock_timeout(session) == expected
        session.commit()
        assert lock_timeout(session) == ("0" if setting == "of the transaction" else expected)


def test_r16_a_wait_of_the_hosts_own_stays_in_force(shop: Shop) -> None:
    """A host that waits for no lock longer than 50 ms does not wait longer for a key either."""
    with transaction(shop) as other, transaction(shop) as session:
        shop.engine.enqueue("email", idempotency_key="k", session=other)
        session.execute(sa.text("SET LOCAL lock_timeout = '50ms'"))
        begun = time.monotonic()
        with pytest.raises(KeyBusyError):
            shop.engine.enqueue("email", idempotency_key="k", session=session)
        assert time.monotonic() - begun < 1


def test_r16_a_statement_that_the_host_cancels_is_no_busy_key(shop: Shop) -> None:
    """Errors that have nothing to do with the key stay what they are, and the savepoint keeps the transaction usable."""
    with transaction(shop) as other, transaction(shop) as session:
        shop.engine.enqueue("email", idempotency_key="k", session=other)
        session.execute(sa.text("SET LOCAL statement_timeout = '100ms'"))
        with pytest.raises(sa.exc.OperationalError, match="statement timeout"):
            shop.engine.enqueue("email", idempotency_key="k", session=session)
        session.execute(sa.text("SET LOCAL statement_timeout = 0"))
        assert lock_timeout(session) == "0"
        assert_usable(session, shop)


def test_r16_a_key_whose_row_is_being_deleted(shop: Shop, pool: ThreadPoolExecutor) -> None:
    """The enqueue waits for the transaction that deletes the row: after its commit the key is free, after its rollback it is not."""
    for commits in (True, False):
        shop.sql("DELETE FROM taskengine_task")
        first_id = shop.enqueue("email", idempotency_key="k")
        with transaction(shop) as deleting, transaction(shop) as session:
            shop.engine.delete(first_id, session=deleting)
            future = enqueue_while_held(shop, pool, session)
            deleting.commit() if commits else deleting.rollback()
            assert future.result(10).created is commits
            session.commit()
        assert len(shop.tasks()) == 1

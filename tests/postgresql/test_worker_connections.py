"""R10 on PostgreSQL: broken connections, strict isolation and hosts with settings of their own do not disturb the worker."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import RetryPolicy, TaskContext
from tests.support.shop import Effect, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

ONCE = RetryPolicy(max_attempts=1)


def test_r10_a_connection_that_breaks_inside_the_handler(shop: Shop, run_worker: RunWorker) -> None:
    """The attempt fails, is recorded and tried again; nothing of the broken connection reaches the next task in the thread."""

    @shop.engine.task("break", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def break_it(payload: Any, context: TaskContext) -> None:
        shop.db.session.add(Effect(name=f"attempt {context.attempt}"))
        shop.db.session.flush()
        if context.attempt == 1:
            shop.sql("SELECT pg_terminate_backend(:pid)", pid=shop.db.session.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())
            shop.db.session.execute(sa.text("SELECT 1"))

    @shop.engine.task("write", retry=ONCE)
    def write(payload: str) -> None:
        shop.db.session.add(Effect(name=payload))

    run_worker(shop, concurrency=1)
    broken, after = shop.enqueue("break", priority=1), shop.enqueue("write", "after")
    task = shop.wait_for(broken)
    assert (task.status, task.attempts) == ("SUCCEEDED", 2)
    assert shop.wait_for(after).status == "SUCCEEDED"
    assert sorted(shop.effects()) == ["after", "attempt 2"]
    assert "OperationalError" in shop.attempts(broken)[0]["error_class"]


def test_r10_a_connection_that_breaks_before_the_commit(shop: Shop, run_worker: RunWorker) -> None:
    """The handler has returned, its work can not be committed: a failed attempt, and the work is there once in the end."""

    @shop.engine.task("break", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def break_it(payload: Any, context: TaskContext) -> None:
        shop.db.session.execute(sa.insert(Effect).values(name=f"attempt {context.attempt}"))
        if context.attempt == 1:
            shop.sql("SELECT pg_terminate_backend(:pid)", pid=shop.db.session.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())

    run_worker(shop, concurrency=1)
    task = shop.wait_for(shop.enqueue("break"))
    assert (task.status, task.attempts) == ("SUCCEEDED", 2)
    assert shop.effects() == ["attempt 2"]


def test_r10_all_of_the_workers_connections_break_at_once(shop: Shop, run_worker: RunWorker) -> None:
    """Dispatcher, completer, roll call, notifier and handlers find new ones by themselves; no task is lost or done twice."""
    shop.engine.task("plain")(lambda payload: None)

    @shop.engine.task("write", retry=RetryPolicy(max_attempts=20, base_backoff=0))
    def write(payload: int) -> None:
        shop.db.session.add(Effect(name=f"effect {payload}"))

    run_worker(shop)
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ids: list[int] = []
    for n in range(5):
        with shop.outside.connect() as connection:
            session_ids = shop.engine.enqueue_many(
                [{"type": "plain"}] * 10 + [{"type": "write", "payload": 10 * n + i} for i in range(10)], session=connection
            )
            connection.commit()
            ids += [made.id for made in session_ids]
            connection.execute(sa.text(others))
            connection.rollback()
    shop.wait_for_all(ids, timeout=40)
    assert sorted(shop.effects()) == sorted(f"effect {n}" for n in range(50))


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("by", ["engine", "server"])
def test_r04_strict_isolation_of_the_host_does_not_disturb_the_worker(
    make_shop: MakeShop, run_worker: RunWorker, caplog: pytest.LogCaptureFixture, level: str, by: str
) -> None:
    """Two nodes that contend for the same rows in a host whose every transaction is strict: each task once, and no error of the loops."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": level} if by == "engine" else {})
    if by == "server":
        shop.sql(f"ALTER DATABASE \"{shop.outside.url.database}\" SET default_transaction_isolation TO '{level.lower()}'")
    shops = [shop, make_shop(SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": level} if by == "engine" else {})]
    seen: list[str] = []
    for one in shops:

        @one.engine.task("write", retry=RetryPolicy(max_attempts=50, base_backoff=0))
        def write(payload: int, one: Shop = one) -> None:
            seen.append(one.db.session.execute(sa.text("SHOW transaction_isolation")).scalar_one())
            one.db.session.add(Effect(name=f"effect {payload}"))

        one.engine.task("plain")(lambda payload: None)
    first = shops[0]
    with first.app.app_context():
        made = first.engine.enqueue_many({"type": ["write", "plain"][n % 2], "payload": n, "priority": n % 3} for n in range(200))
        first.db.session.commit()
    for one in shops:
        run_worker(one, concurrency=4)
    first.wait_for_all([one_made.id for one_made in made], timeout=40)
    assert sorted(first.effects()) == sorted(f"effect {n}" for n in range(0, 200, 2))
    assert set(seen) == {level.lower()}
    troubles = [record.getMessage() for record in caplog.records if record.name == "flask_taskengine" and record.levelname == "WARNING"]
    assert troubles == []


def test_r22_the_last_flush_belongs_to_the_handler(shop: Shop, run_worker: RunWorker) -> None:
    """A flush that waits for another transaction's row is cancelled by the timeout too."""

    @shop.engine.task("wait", timeout="300ms", retry=ONCE)
    def wait(payload: Any) -> None:
        shop.db.session.add(Effect(name="same"))

    run_worker(shop)
    with shop.outside.connect() as other:
        other.execute(sa.insert(Effect).values(name="same"))
        assert shop.wait_for(shop.enqueue("wait")).last_error == "TaskTimedOut: timed out after 0.3 s"


def test_r04_rows_that_are_locked_by_somebody_are_passed_over(shop: Shop, run_worker: RunWorker) -> None:
    """A lock of a person's session on one due row keeps only that one, and its release lets it run."""
    shop.engine.task("a")(lambda payload: None)
    locked, free = shop.enqueue("a", priority=9), shop.enqueue("a")
    with shop.outside.connect() as person:
        person.execute(sa.text(f"SELECT id FROM taskengine_task WHERE id = {locked} FOR UPDATE"))
        run_worker(shop)
        assert shop.wait_for(free).status == "SUCCEEDED"
        assert shop.task(locked).status == "PENDING"
        person.rollback()
    assert shop.wait_for(locked).status == "SUCCEEDED"


def test_r10_a_host_with_a_single_connection(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """The worker's loops do not live on the handlers' pool: one connection for two handlers at a time is enough."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"pool_size": 1, "max_overflow": 0, "pool_timeout": 20})

    @shop.engine.task("write")
    def write(payload: int) -> None:
        shop.db.session.add(Effect(name=f"effect {payload}"))

    run_worker(shop, concurrency=2)
    with shop.app.app_context():
        made = shop.engine.enqueue_many({"type": "write", "payload": n} for n in range(20))
        shop.db.session.commit()
    shop.wait_for_all([one.id for one in made])
    assert len(shop.effects()) == 20


def test_r10_a_handler_that_holds_its_transaction_keeps_nobody_from_working(shop: Shop, run_worker: RunWorker) -> None:
    """While one handler sits in an open transaction, others claim, run and complete."""
    inside, release = threading.Event(), threading.Event()

    @shop.engine.task("long")
    def long(payload: Any) -> None:
        shop.db.session.add(Effect(name="long"))
        shop.db.session.flush()
        inside.set()
        release.wait(20)

    @shop.engine.task("short")
    def short(payload: int) -> None:
        shop.db.session.add(Effect(name=f"short {payload}"))

    run_worker(shop, concurrency=3)
    long_id = shop.enqueue("long")
    assert inside.wait(10)
    with shop.app.app_context():
        made = shop.engine.enqueue_many({"type": "short", "payload": n} for n in range(20))
        shop.db.session.commit()
    shop.wait_for_all([one.id for one in made])
    assert len(shop.effects()) == 20
    release.set()
    shop.wait_for(long_id)
    wait_until(lambda: len(shop.effects()) == 21, what="the long one's work")

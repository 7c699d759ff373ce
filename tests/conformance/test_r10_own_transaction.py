"""R10: each task has an app context, a session and a transaction of its own."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import current_app, g, has_request_context
from sqlalchemy.orm import Session

from flask_taskengine import RetryPolicy, TaskStatus, current_task
from tests.support.shop import Effect, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

ONCE = RetryPolicy(max_attempts=1)
ONE_CONNECTION = {"SQLALCHEMY_ENGINE_OPTIONS": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}}


def add(shop: Shop, name: str) -> None:
    """Leave an effect in the session of the task that runs."""
    shop.db.session.add(Effect(name=name))


def run_in_turn(shop: Shop, run_worker: RunWorker, *task_types: str) -> list[TaskStatus]:
    """Run tasks one after the other in one thread; return how they ended."""
    ids = shop.enqueue_many(*task_types)
    run_worker(shop, 1)
    return [shop.wait_for(task_id).status for task_id in ids]


def test_r10_effects_stand_exactly_if_the_task_succeeded(shop: Shop, run_worker: RunWorker) -> None:
    """What a handler wrote is committed with its task's completion, or rolled back with its failure."""

    @shop.engine.task("good")
    def good(payload: Any) -> None:
        add(shop, "good")

    @shop.engine.task("flushed", retry=ONCE)
    def flushed(payload: Any) -> None:
        add(shop, "flushed")
        shop.db.session.flush()
        raise ValueError("after the flush")

    @shop.engine.task("bad", retry=ONCE)
    def bad(payload: Any) -> None:
        add(shop, "bad")
        shop.engine.enqueue("good")
        raise ValueError("after the add")

    assert run_in_turn(shop, run_worker, "flushed", "bad", "good") == ["DEAD", "DEAD", "SUCCEEDED"]
    assert shop.effects() == ["good"]
    assert len(shop.tasks()) == 3


def test_r10_nothing_is_left_for_the_next_task(shop: Shop, run_worker: RunWorker) -> None:
    """Session, identity map, ``g`` and app context are new for each task, and no request is pretended."""
    seen: list[tuple[Any, int, bool, str, bool]] = []

    @shop.engine.task("look")
    def look(payload: Any) -> None:
        session = shop.db.session()
        seen.append((session, len(session.identity_map), hasattr(g, "mark"), current_app.name, has_request_context()))
        g.mark = True
        add(shop, f"look {len(seen)}")
        session.flush()

    assert set(run_in_turn(shop, run_worker, *["look"] * 4)) == {"SUCCEEDED"}
    assert [row[1:] for row in seen] == [(0, False, "host", False)] * 4
    assert len({id(row[0]) for row in seen}) == 4
    assert all(not session.in_transaction() and not session.identity_map for session, *_ in seen)


def test_r10_a_poisoned_session_stays_with_its_task(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """A failed flush, also one that the handler hides, fails its own task only (faults P107)."""
    shop = make_shop(**ONE_CONNECTION)
    shop.sql("INSERT INTO effect (id, name) VALUES (1, 'there')")

    @shop.engine.task("poisoned", retry=ONCE)
    def poisoned(payload: Any) -> None:
        add(shop, "there")
        shop.db.session.flush()

    @shop.engine.task("hidden", retry=ONCE)
    def hidden(payload: Any) -> None:
        add(shop, "never")
        with pytest.raises(sa.exc.IntegrityError):
            shop.db.session.execute(sa.insert(Effect).values(name="there"))
        if shop.is_postgresql:
            with pytest.raises(sa.exc.DBAPIError):
                shop.db.session.execute(sa.text("SELECT 1"))
            return
        raise ValueError("SQLite's transaction is still usable")

    @shop.engine.task("pending", retry=ONCE)
    def pending(payload: Any) -> None:
        add(shop, "there")

    @shop.engine.task("next")
    def following(payload: Any) -> None:
        add(shop, f"next {shop.db.session.scalar(sa.select(sa.func.count()).select_from(Effect))}")

    kinds = ["poisoned", "next", "hidden", "next", "pending", "next"]
    assert run_in_turn(shop, run_worker, *kinds) == ["DEAD", "SUCCEEDED"] * 3
    assert shop.effects() == ["there", "next 1", "next 2", "next 3"]


def test_r10_a_hidden_failure_of_a_statement_is_told(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """A handler that hides a failed flush does not end as a success that wrote nothing."""
    shop = make_shop(**ONE_CONNECTION)
    shop.sql("INSERT INTO effect (id, name) VALUES (1, 'there')")

    @shop.engine.task("hides", retry=ONCE)
    def hides(payload: Any) -> None:
        add(shop, "there")
        with pytest.raises(sa.exc.IntegrityError):
            shop.db.session.flush()
        add(shop, "lost")

    statuses = run_in_turn(shop, run_worker, "hides")
    # The session rolls back by itself, so what follows is a new transaction: either way effects and status agree.
    assert (statuses == ["SUCCEEDED"]) == ("lost" in shop.effects())


def test_r10_a_broken_connection_stays_with_its_task(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """A connection that the server has cut fails the task that had it, and the next one gets another."""
    shop = make_shop(**ONE_CONNECTION)

    @shop.engine.task("cut", retry=ONCE)
    def cut(payload: Any) -> None:
        add(shop, "cut")
        shop.db.session.flush()
        if not shop.is_postgresql:
            driver: Any = shop.db.session.connection().connection.driver_connection
            driver.close()
            shop.db.session.execute(sa.text("SELECT 1"))
        pid = shop.db.session.scalar(sa.text("SELECT pg_backend_pid()"))
        shop.sql(f"SELECT pg_terminate_backend({pid})")

    @shop.engine.task("next")
    def following(payload: Any) -> None:
        add(shop, "next" + str(shop.db.session.scalar(sa.select(sa.func.count()).select_from(Effect))))

    assert run_in_turn(shop, run_worker, "cut", "next", "cut", "next") == ["DEAD", "SUCCEEDED"] * 2
    assert shop.effects() == ["next0", "next1"]


def test_r10_a_nested_app_context_has_its_own_session(shop: Shop, run_worker: RunWorker) -> None:
    """A context that the handler opens and closes takes nothing away from the task's own session (faults P143)."""

    @shop.engine.task("nested")
    def nested(payload: Any) -> None:
        kept = Effect(name="outer")
        shop.db.session.add(kept)
        with shop.app.app_context():
            shop.db.session.scalar(sa.select(sa.func.count()).select_from(Effect))
            shop.db.session.add(Effect(name="never committed"))
        kept.name = "outer, changed"

    @shop.engine.task("nested-commit")
    def nested_commit(payload: Any) -> None:
        with shop.app.app_context():
            add(shop, "inner")
            shop.db.session.commit()
        add(shop, "after inner")

    assert run_in_turn(shop, run_worker, "nested", "nested-commit") == ["SUCCEEDED"] * 2
    assert shop.effects() == ["outer, changed", "inner", "after inner"]


def test_r10_a_handler_may_commit_by_itself(shop: Shop, run_worker: RunWorker) -> None:
    """An earlier commit stands, also if the attempt fails afterwards; what follows it belongs to the completion."""

    @shop.engine.task("halves", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def halves(payload: Any) -> None:
        add(shop, f"half {current_task.attempt}")
        shop.db.session.commit()
        add(shop, "rest")
        shop.db.session.flush()
        if current_task.attempt == 1:
            raise ValueError("between the halves")

    @shop.engine.task("only-commits")
    def only_commits(payload: Any) -> None:
        add(shop, "whole")
        shop.db.session.commit()

    assert run_in_turn(shop, run_worker, "halves", "only-commits") == ["SUCCEEDED"] * 2
    assert sorted(shop.effects()) == ["half 1", "half 2", "rest", "whole"]


def test_r10_a_session_of_the_handlers_own_is_left_alone(shop: Shop, run_worker: RunWorker) -> None:
    """A handler may work with another session; the task's own completion does not depend on it."""

    @shop.engine.task("own", retry=ONCE)
    def own(payload: Any) -> None:
        with Session(shop.db.engine) as session:
            session.add(Effect(name=f"own {len(shop.effects())}"))
            session.commit()
        if payload:
            raise ValueError("after the own commit")

    good, bad = shop.enqueue("own"), shop.enqueue("own", "bad")
    run_worker(shop, 1)
    assert [shop.wait_for(task_id).status for task_id in (good, bad)] == ["SUCCEEDED", "DEAD"]
    assert shop.effects() == ["own 0", "own 1"]


@pytest.mark.parametrize("way", ["close", "remove", "rollback"])
def test_r10_a_handler_may_end_its_session(make_shop: MakeShop, run_worker: RunWorker, way: str) -> None:
    """A session that was closed, removed or rolled back inside loses what was pending, and the task still ends."""
    shop = make_shop(**ONE_CONNECTION)

    @shop.engine.task("ends")
    def ends(payload: Any) -> None:
        add(shop, "dropped")
        shop.db.session.flush()
        getattr(shop.db.session, way)()
        if payload:
            add(shop, "kept")

    empty, more = shop.enqueue("ends"), shop.enqueue("ends", "more")
    run_worker(shop, 1)
    assert [shop.wait_for(task_id).status for task_id in (empty, more)] == ["SUCCEEDED"] * 2
    assert shop.effects() == ["kept"]


def test_r10_the_hosts_pool_of_one_is_enough(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Handlers give their connections back, so many tasks in turn need no more than one."""
    shop = make_shop(**ONE_CONNECTION)

    @shop.engine.task("effect", retry=ONCE)
    def effect(payload: Any) -> None:
        add(shop, f"effect {payload}")
        if payload % 3 == 0:
            raise ValueError("every third")

    ids = [shop.enqueue("effect", n) for n in range(24)]
    run_worker(shop, 2)
    assert [shop.wait_for(task_id).status for task_id in ids] == ["DEAD", "SUCCEEDED", "SUCCEEDED"] * 8
    assert len(shop.effects()) == 16
    with shop.app.app_context():
        pool: Any = shop.db.engine.pool
    wait_until(lambda: pool.checkedout() == 0)


def test_r10_a_teardown_of_the_host_that_raises_costs_no_slot(shop: Shop, run_worker: RunWorker) -> None:
    """The host's own teardown functions run for each task; one that raises changes nothing for what is committed."""

    @shop.app.teardown_appcontext
    def teardown(error: BaseException | None) -> None:
        if getattr(g, "breaks", False):
            raise RuntimeError("a teardown of the host")

    @shop.engine.task("breaks", retry=ONCE)
    def breaks(payload: Any) -> None:
        g.breaks = True
        add(shop, f"breaks {payload}")

    ids = [shop.enqueue("breaks", n) for n in range(4)]
    run_worker(shop, 1)
    assert [shop.wait_for(task_id).status for task_id in ids] == ["SUCCEEDED"] * 4
    assert len(shop.effects()) == 4

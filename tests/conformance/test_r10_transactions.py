"""R10: the work of a task and its completion are one transaction."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import RetryPolicy, TaskContext
from tests.support.shop import Effect, Events, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

ONCE = RetryPolicy(max_attempts=1)


def test_r10_work_and_completion_commit_together(shop: Shop, run_worker: RunWorker) -> None:
    """While the handler runs nothing of its work is visible; afterwards the work and SUCCEEDED are, in one commit."""
    inside, release = threading.Event(), threading.Event()

    @shop.engine.task("write")
    def write(payload: Any) -> None:
        shop.db.session.add(Effect(name="work"))
        shop.db.session.flush()
        inside.set()
        release.wait(10)

    run_worker(shop)
    task_id = shop.enqueue("write")
    assert inside.wait(10)
    assert (shop.effects(), shop.task(task_id).status) == ([], "RUNNING")
    release.set()
    seen = wait_until(lambda: (shop.effects(), shop.task(task_id).status) if shop.effects() else None, what="the commit")
    assert seen == (["work"], "SUCCEEDED")


@pytest.mark.parametrize("form", ["pending", "flushed", "core", "dirty"])
def test_r10_work_of_every_form_is_committed(shop: Shop, run_worker: RunWorker, form: str) -> None:
    """An object that is only pending, one that is flushed, a Core statement, a changed object: the session counts as used."""
    with shop.app.app_context():
        shop.db.session.add(Effect(name="old"))
        shop.db.session.commit()

    @shop.engine.task("write")
    def write(payload: Any) -> None:
        session = shop.db.session
        match form:
            case "pending":
                session.add(Effect(name="new"))
            case "flushed":
                session.add(Effect(name="new"))
                session.flush()
            case "core":
                session.execute(sa.insert(Effect).values(name="new"))
            case "dirty":
                session.execute(sa.select(Effect)).scalar_one().name = "new"

    run_worker(shop)
    assert shop.wait_for(shop.enqueue("write")).status == "SUCCEEDED"
    assert shop.effects() == (["new"] if form == "dirty" else ["old", "new"])


def test_r10_a_handler_enqueues_in_the_same_transaction(shop: Shop, events: Events, run_worker: RunWorker) -> None:
    """What it enqueues exists exactly when the task has succeeded, and is announced only then."""

    @shop.engine.task("parent", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def parent(payload: Any, context: TaskContext) -> None:
        shop.engine.enqueue("child", context.attempt)
        with shop.db.session.begin_nested():
            shop.engine.enqueue("child", context.attempt, idempotency_key="only one")
        if context.attempt == 1:
            raise ValueError

    shop.engine.task("child")(lambda payload: None)
    run_worker(shop)
    shop.wait_for(shop.enqueue("parent"))
    wait_until(lambda: [task.status for task in shop.tasks()] == ["SUCCEEDED"] * 3, what="both children")
    assert [task.payload for task in shop.tasks()] == [None, 2, 2]
    assert [fields["task_type"] for fields in events.of("task_enqueued")] == ["parent", "child", "child"]


def test_r10_a_handler_that_fails_warns_of_no_lost_task(shop: Shop, run_worker: RunWorker, caplog: pytest.LogCaptureFixture) -> None:
    """A failed attempt rolls back on purpose."""

    @shop.engine.task("parent", retry=ONCE)
    def parent(payload: Any) -> None:
        shop.engine.enqueue("child")
        raise ValueError

    run_worker(shop)
    shop.wait_for(shop.enqueue("parent"))
    assert not [record for record in caplog.records if "are lost" in record.getMessage()]


def test_r10_a_violation_that_shows_at_the_last_flush(shop: Shop, run_worker: RunWorker) -> None:
    """The failure is the attempt's, with the database's message, and no half of it is kept."""

    @shop.engine.task("twice", retry=ONCE)
    def twice(payload: Any) -> None:
        shop.db.session.add_all([Effect(name="other"), Effect(name="same"), Effect(name="same")])

    run_worker(shop)
    task = shop.wait_for(shop.enqueue("twice"))
    assert task.status == "DEAD"
    assert task.last_error is not None
    assert "IntegrityError" in task.last_error
    assert shop.effects() == []


def test_r10_a_savepoint_that_is_left_open(shop: Shop, run_worker: RunWorker) -> None:
    """It is committed with the rest."""

    @shop.engine.task("open")
    def leave_open(payload: Any) -> None:
        shop.db.session.begin_nested()
        shop.db.session.add(Effect(name="in the savepoint"))

    run_worker(shop)
    assert shop.wait_for(shop.enqueue("open")).status == "SUCCEEDED"
    assert shop.effects() == ["in the savepoint"]


def test_r10_reading_before_writing_never_finds_the_database_locked(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Two workers whose handlers read and then write, and a web process that writes at the same time."""
    shops = [make_shop(), make_shop()]
    for one in shops:

        @one.engine.task("count", retry=ONCE)
        def count(payload: int, one: Shop = one) -> None:
            before = one.db.session.execute(sa.select(sa.func.count()).select_from(Effect)).scalar_one()
            with one.db.session.begin_nested():
                assert before >= 0
                one.db.session.add(Effect(name=f"task {payload}"))

    first = shops[0]
    with first.app.app_context():
        made = first.engine.enqueue_many({"type": "count", "payload": n} for n in range(60))
        first.db.session.commit()
    for one in shops:
        run_worker(one, concurrency=3)
    for n in range(60):
        with first.app.app_context():
            first.db.session.execute(sa.select(sa.func.count()).select_from(Effect)).scalar_one()
            first.db.session.add(Effect(name=f"web {n}"))
            first.db.session.commit()
    for one_made in made:
        task = first.wait_for(one_made.id, timeout=30)
        assert (task.status, task.last_error) == ("SUCCEEDED", None)
    assert len(first.effects()) == 120

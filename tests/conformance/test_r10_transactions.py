"""R10: every task runs in a transaction of its own, and leaves nothing of it to the next."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from flask_taskengine import RetryPolicy, TaskContext
from tests.support.shop import Effect, Events, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

ONCE = RetryPolicy(max_attempts=1)


# --- one transaction --------------------------------------------------------------------------------------------------------


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


# --- the next task ------------------------------------------------------------------------------------------------------------


def test_r10_the_session_is_removed_after_every_task(shop: Shop, run_worker: RunWorker) -> None:
    """One thread, many tasks: each finds a session of its own, with no transaction and no object of another."""
    seen: list[tuple[int, bool, int]] = []
    alive: list[Session] = []  # so that no identity is used again

    @shop.engine.task("look")
    def look(payload: Any) -> None:
        session = shop.db.session()
        seen.append((id(session), session.in_transaction(), len(session.identity_map)))
        alive.append(session)
        session.add(Effect(name=f"effect {len(seen)}"))
        session.flush()

    run_worker(shop, concurrency=1)
    shop.wait_for_all(shop.enqueue_many(*["look"] * 5))
    assert len({identity for identity, _, _ in seen}) == 5
    assert {(used, objects) for _, used, objects in seen} == {(False, 0)}


def test_r10_a_poisoned_session_never_reaches_the_next_task(shop: Shop, run_worker: RunWorker) -> None:
    """A handler that swallows its failed flush fails all the same; the next one in the thread is not affected."""

    @shop.engine.task("poison", retry=ONCE)
    def poison(payload: Any) -> None:
        shop.db.session.add_all([Effect(name="same"), Effect(name="same")])
        with suppress(sa.exc.IntegrityError):
            shop.db.session.flush()

    @shop.engine.task("write")
    def write(payload: Any) -> None:
        shop.db.session.add(Effect(name=payload))

    run_worker(shop, concurrency=1)
    bad, good = shop.enqueue("poison"), shop.enqueue("write", "good")
    task = shop.wait_for(bad)
    assert task.status == "DEAD"
    assert task.last_error is not None
    assert "PendingRollbackError" in task.last_error
    assert shop.wait_for(good).status == "SUCCEEDED"
    assert shop.effects() == ["good"]


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


# --- handlers that go their own ways ------------------------------------------------------------------------------------------


def test_r10_a_handler_that_commits_itself(shop: Shop, run_worker: RunWorker) -> None:
    """Each of its commits is kept, and the task succeeds, also when nothing is left to be committed at the end."""

    @shop.engine.task("commit")
    def commit(payload: bool) -> None:
        shop.db.session.add(Effect(name=f"first {payload}"))
        shop.db.session.commit()
        if payload:
            shop.db.session.add(Effect(name=f"second {payload}"))

    run_worker(shop)
    for payload in (True, False):
        assert shop.wait_for(shop.enqueue("commit", payload)).status == "SUCCEEDED"
    assert shop.effects() == ["first True", "second True", "first False"]


def test_r10_a_handler_that_commits_and_then_fails(shop: Shop, run_worker: RunWorker) -> None:
    """What it has committed stays, what came after is rolled back: at least once for commits of its own."""

    @shop.engine.task("commit", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def commit(payload: Any, context: TaskContext) -> None:
        shop.db.session.add(Effect(name=f"committed {context.attempt}"))
        shop.db.session.commit()
        shop.db.session.add(Effect(name=f"lost {context.attempt}"))
        shop.db.session.flush()
        raise ValueError

    run_worker(shop)
    assert shop.wait_for(shop.enqueue("commit")).status == "DEAD"
    assert shop.effects() == ["committed 1", "committed 2"]


@pytest.mark.parametrize("verb", ["close", "remove", "rollback", "expunge_all"])
def test_r10_a_handler_that_ends_the_session_itself(shop: Shop, run_worker: RunWorker, verb: str) -> None:
    """Closing, removing or rolling back the session drops what was in it, and the task succeeds: the handler has returned."""

    @shop.engine.task("end")
    def end(payload: Any) -> None:
        shop.db.session.add(Effect(name="dropped"))
        getattr(shop.db.session, verb)()

    run_worker(shop, concurrency=1)
    shop.wait_for_all(shop.enqueue_many("end", "end"))
    assert shop.effects() == []


def test_r10_a_handler_with_a_session_of_its_own(shop: Shop, run_worker: RunWorker) -> None:
    """It commits for itself, as anywhere; ``db.session`` is not touched, and the completion is the completer's."""

    @shop.engine.task("own")
    def own(payload: Any) -> None:
        with Session(shop.db.engine) as session:
            session.add(Effect(name="own"))
            session.commit()
        with shop.db.engine.begin() as connection:
            connection.execute(sa.insert(Effect).values(name="core"))

    run_worker(shop)
    assert shop.wait_for(shop.enqueue("own")).status == "SUCCEEDED"
    assert shop.effects() == ["own", "core"]


def test_r10_a_nested_app_context_has_a_session_of_its_own(shop: Shop, run_worker: RunWorker) -> None:
    """Popping it removes the inner session, not the handler's: objects stay attached and everything is committed once."""

    @shop.engine.task("nested")
    def nested(payload: Any) -> None:
        outer = Effect(name="outer")
        shop.db.session.add(outer)
        shop.db.session.flush()
        first = shop.db.session()
        if not shop.is_postgresql:
            shop.db.session.commit()  # One writer at a time.
        with shop.app.app_context():
            assert shop.db.session() is not first
            shop.db.session.add(Effect(name="inner"))
            shop.db.session.commit()
        assert shop.db.session() is first
        assert outer.name == "outer"
        shop.db.session.add(Effect(name="last"))

    run_worker(shop)
    assert shop.wait_for(shop.enqueue("nested")).status == "SUCCEEDED"
    assert sorted(shop.effects()) == ["inner", "last", "outer"]


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

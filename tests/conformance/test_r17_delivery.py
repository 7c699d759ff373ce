"""R17: exactly once for what the completion's transaction holds; whoever has lost a task changes nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from flask_taskengine import LeaseLostError, RetryPolicy, TaskStatus, current_task, signals
from flask_taskengine.domain.outcome import Returned
from flask_taskengine.runtime.completer import Ended
from flask_taskengine.store import tasks
from tests.support.shop import Effect, Events, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

ONCE = RetryPolicy(max_attempts=1)


def steal(shop: Shop, task_id: int) -> None:
    """Do from outside what the reaper and another node's claim do to a task that runs here."""
    shop.sql("UPDATE taskengine_task SET claims = claims + 1, attempts = attempts + 1, claimed_by = 'thief' WHERE id = :id", id=task_id)


def add(shop: Shop, name: str) -> None:
    """Leave an effect in the session of the task that runs."""
    shop.db.session.add(Effect(name=name))


# --- fencing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uses_session", [True, False])
def test_r17_the_completion_of_a_lost_task_is_refused(shop: Shop, run_worker: RunWorker, events: Events, uses_session: bool) -> None:
    """Another claim since: nothing of the row changes, the effects are rolled back, and the loss is told."""

    @shop.engine.task("robbed")
    def robbed(payload: Any) -> None:
        steal(shop, current_task.task_id)
        if uses_session:
            add(shop, "never")

    task_id = shop.enqueue("robbed")
    run_worker(shop)
    wait_until(lambda: events.of("task_lease_lost"))
    assert events.of("task_lease_lost")[0]["token"] == 1
    task = shop.task(task_id)
    assert (task.status, task.claims, task.claimed_by, task.finished_at) == ("RUNNING", 2, "thief", None)
    assert shop.effects() == []
    assert shop.attempts(task_id) == []


def test_r17_the_failure_of_a_lost_task_is_refused(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """A failure, too, is recorded only for who holds the task."""

    @shop.engine.task("robbed", retry=ONCE)
    def robbed(payload: Any) -> None:
        steal(shop, current_task.task_id)
        raise ValueError("too late")

    task_id = shop.enqueue("robbed")
    run_worker(shop)
    wait_until(lambda: events.of("task_lease_lost"))
    task = shop.task(task_id)
    assert (task.status, task.claims, task.last_error) == ("RUNNING", 2, None)
    assert shop.attempts(task_id) == []


def test_r17_an_earlier_commit_of_a_lost_task_is_refused(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """A handler that commits by itself is stopped at the commit, also where it swallows the error and commits again."""
    refused: list[type[BaseException]] = []

    @shop.engine.task("robbed")
    def robbed(payload: Any) -> None:
        add(shop, "before")
        shop.db.session.commit()
        steal(shop, current_task.task_id)
        for name in ("never", "not at all"):
            add(shop, name)
            with pytest.raises(LeaseLostError) as caught:
                shop.db.session.commit()
            refused.append(caught.type)
            shop.db.session.rollback()

    task_id = shop.enqueue("robbed")
    run_worker(shop)
    wait_until(lambda: events.of("task_lease_lost"))
    assert refused == [LeaseLostError] * 2
    assert shop.effects() == ["before"]
    assert (shop.task(task_id).status, shop.task(task_id).claims) == ("RUNNING", 2)


def test_r17_a_task_that_is_stolen_during_the_commit_is_noticed(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """The look at who holds the task comes after the last write of the commit, so nothing can slip in between."""

    @shop.engine.task("robbed", retry=ONCE)
    def robbed(payload: Any) -> None:
        task_id = current_task.task_id
        event.listen(shop.db.session(), "before_flush", lambda *_: steal(shop, task_id), once=True)
        add(shop, "never")
        shop.db.session.commit()

    shop.enqueue("robbed")
    run_worker(shop)
    wait_until(lambda: events.of("task_lease_lost"))
    assert shop.effects() == []


def test_r17_a_handler_is_told_that_the_lease_is_lost(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """A node whose row is gone tells its handlers, their ends are refused, and it works on under a new name (faults 4)."""
    inside = threading.Event()

    @shop.engine.task("long")
    def long(payload: Any) -> None:
        context = current_task._get_current_object()  # type: ignore[attr-defined]
        add(shop, "never")
        inside.set()
        assert context.lease_lost_event.wait(20)
        assert current_task.lease_lost

    @shop.engine.task("next")
    def following(payload: Any) -> None:
        """Do nothing."""

    task_id = shop.enqueue("long")
    worker = run_worker(shop)
    assert inside.wait(20)
    first = worker.membership.id
    shop.sql("DELETE FROM taskengine_node")
    steal(shop, task_id)
    worker.node_lost(first)
    wait_until(lambda: events.of("task_lease_lost"))
    assert shop.effects() == []
    assert shop.wait_for(shop.enqueue("next")).claimed_by == worker.membership.id != first


def test_r17_a_row_that_was_deleted_meanwhile_costs_nothing(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """Somebody deletes RUNNING rows by SQL: each end is void, and the worker goes on (faults 22)."""

    @shop.engine.task("gone", retry=ONCE)
    def gone(payload: Any) -> None:
        shop.sql("DELETE FROM taskengine_task WHERE id = :id", id=current_task.task_id)
        if payload == "writes":
            add(shop, "never")
        if payload == "fails":
            raise ValueError("nobody wants to know")

    @shop.engine.task("next")
    def following(payload: Any) -> None:
        """Do nothing."""

    for payload in ("returns", "writes", "fails"):
        shop.enqueue("gone", payload)
    run_worker(shop, 1)
    assert shop.wait_for(shop.enqueue("next")).status is TaskStatus.SUCCEEDED
    wait_until(lambda: len(events.of("task_lease_lost")) == 3)
    assert shop.effects() == []
    assert shop.sql("SELECT count(*) FROM taskengine_attempt")[0][0] == 0


# --- exactly once --------------------------------------------------------------------------------------------------------


def test_r17_five_hundred_effects_exactly_once(shop: Shop, run_worker: RunWorker) -> None:
    """Every task's effect is there once, with failures, own commits and retries in between."""
    retry = RetryPolicy(max_attempts=5, base_backoff=0)

    @shop.engine.task("effect", retry=retry, timeout=None)
    def effect(payload: int) -> None:
        add(shop, f"effect {payload}")
        if payload % 7 == 0 and current_task.attempt == 1:
            shop.db.session.flush()
            raise ValueError("the first attempt of every seventh")

    with shop.app.app_context():
        ids = [made.id for made in shop.engine.enqueue_many({"type": "effect", "payload": n} for n in range(500))]
        shop.db.session.commit()
    run_worker(shop, 8)
    shop.wait_for_all(ids, timeout=50)
    assert sorted(shop.effects()) == sorted(f"effect {n}" for n in range(500))
    assert all(task.attempts == (2 if task.payload % 7 == 0 else 1) for task in shop.tasks())


def test_r17_a_completion_that_was_lost_in_its_commit_is_no_failure(shop: Shop, events: Events) -> None:
    """The connection broke while the commit was under way: settled again, it counts once (faults 25)."""

    @shop.engine.task("done")
    def done(payload: Any) -> None:
        """Do nothing."""

    task_id = shop.enqueue("done")
    worker = shop.worker()
    with shop.outside.begin() as connection:
        connection.execute(
            sa.insert(shop.dialect.tables.node).values(
                id="n", label="n", host="h", pid=1, version="1", concurrency=1, types="[]", limits="{}"
            )
        )
    with shop.outside.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        (claimed,) = shop.dialect.claim(connection, "n", {"done": 1}, 1)
        ended = Ended(claimed, Returned(), 0.1)
        first = worker.completer.settle(connection, ended)
        again = worker.completer.settle(connection, ended)
    worker.stop(0)
    assert first == again
    assert (shop.task(task_id).status, shop.task(task_id).attempts) == ("SUCCEEDED", 1)
    assert shop.attempts(task_id) == []


def test_r17_an_error_after_the_commit_does_not_run_the_task_again(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """The commit reached the database and its answer did not: the effect stands, once, and the task is SUCCEEDED."""

    @shop.engine.task("effect", retry=RetryPolicy(max_attempts=3, base_backoff=0))
    def effect(payload: Any) -> None:
        add(shop, f"effect {current_task.attempt}")

        def lose(_: Any) -> None:
            raise sa.exc.OperationalError("COMMIT", {}, Exception("the answer was lost"))

        event.listen(shop.db.session(), "after_commit", lose, once=True)

    task_id = shop.enqueue("effect")
    run_worker(shop)
    wait_until(lambda: "task_succeeded" in events.names(task_id))
    assert (shop.task(task_id).status, shop.task(task_id).attempts) == ("SUCCEEDED", 1)
    assert shop.effects() == ["effect 1"]
    assert shop.attempts(task_id) == []
    assert "task_retried" not in events.names(task_id)


def test_r17_recording_a_failure_twice_changes_nothing(shop: Shop) -> None:
    """A failed attempt is kept once, whoever records it (faults 25)."""
    from flask_taskengine.domain.outcome import Failure

    task_id = shop.enqueue("any")
    with shop.outside.begin() as connection:
        connection.execute(
            sa.insert(shop.dialect.tables.node).values(
                id="n", label="n", host="h", pid=1, version="1", concurrency=1, types="[]", limits="{}"
            )
        )
    with shop.outside.begin() as connection:
        (claimed,) = shop.dialect.claim(connection, "n", {"any": 1}, 1)
        for _ in range(2):
            tasks.record_attempt(connection, shop.dialect.tables, claimed, "n", Failure("Error", "once"))
    assert [a["message"] for a in shop.attempts(task_id)] == ["once"]


# --- odd ends ------------------------------------------------------------------------------------------------------------


class NoTextError(Exception):
    """An error that can not say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


ODD: dict[str, Any] = {
    "nul": lambda: ValueError("a\0b"),
    "surrogate": lambda: ValueError("a\udc80b"),
    "large": lambda: ValueError("x" * 10_000_000),
    "textless": NoTextError,
    "bytes": lambda: ValueError(b"\xff\0"),
    "empty": Exception,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "group": lambda: BaseExceptionGroup("g", [SystemExit(1), ValueError("\0")]),
}


def test_r17_whatever_a_handler_raises_is_a_failure(shop: Shop, run_worker: RunWorker) -> None:
    """Odd text and errors that end threads elsewhere are recorded, and cost no slot (faults 112)."""

    @shop.engine.task("raises", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def raises(payload: str) -> None:
        add(shop, payload)
        raise ODD[payload]()  # noqa: RSE102 - it makes an error.

    @shop.engine.task("next")
    def following(payload: Any) -> None:
        """Do nothing."""

    ids = {name: shop.enqueue("raises", name) for name in ODD}
    run_worker(shop, 2)
    for name, task_id in ids.items():
        task = shop.wait_for(task_id, timeout=20)
        assert (name, task.status, task.attempts) == (name, "DEAD", 2)
        assert task.last_error
        assert len(task.last_error) < 10_000
        assert [len(a["traceback"]) < 100_000 for a in shop.attempts(task_id)] == [True, True]
    assert "\\x00" in (shop.task(ids["nul"]).last_error or "")
    assert (shop.task(ids["SystemExit"]).last_error or "").startswith("SystemExit: 3")
    assert shop.effects() == []
    shop.wait_for_all(shop.enqueue_many(*["next"] * 20))


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_r17_receivers_that_raise_change_nothing(shop: Shop, run_worker: RunWorker, error: type[BaseException]) -> None:
    """Hooks that fail, or want to exit, at any event cost no task, no slot and no loop of the worker (faults 112, 128)."""

    @shop.engine.task("good")
    def good(payload: Any) -> None:
        add(shop, f"good {current_task.task_id}")

    @shop.engine.task("idle")
    def idle(payload: Any) -> None:
        """Do nothing."""

    @shop.engine.task("bad", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def bad(payload: Any) -> None:
        raise LookupError("bad")

    def receiver(_: Any, **fields: Any) -> None:
        raise error("a hook")

    ids = shop.enqueue_many("good", "idle", "bad", "good", "idle", "bad")
    hooked = [signal for name, signal in signals.namespace.items() if name != "task_enqueued"]
    for signal in hooked:
        signal.connect(receiver, sender=shop.engine)
    run_worker(shop, 2)
    expected = [TaskStatus.SUCCEEDED, TaskStatus.SUCCEEDED, TaskStatus.DEAD] * 2
    assert [shop.wait_for(task_id).status for task_id in ids] == expected
    more = shop.enqueue_many(*["good", "idle"] * 5)
    shop.wait_for_all(more)
    assert len(shop.effects()) == 7
    assert all(task.attempts == task.claims for task in shop.tasks())


# --- results and retention ------------------------------------------------------------------------------------------------


def test_r17_a_result_is_stored_where_it_is_asked_for(shop: Shop, run_worker: RunWorker) -> None:
    """Used session or not, the return value stands in the row; without ``store_result`` nothing does."""

    @shop.engine.task("stores", store_result=True)
    def stores(payload: Any) -> Any:
        if payload == "writes":
            add(shop, "effect")
        return {"got": payload, "deep": [1, None, {"ü": True}]}

    @shop.engine.task("drops")
    def drops(payload: Any) -> Any:
        return {"got": payload}

    ids = [shop.enqueue("stores", "reads"), shop.enqueue("stores", "writes"), shop.enqueue("drops", "any")]
    run_worker(shop)
    shop.wait_for_all(ids)
    wanted = [{"got": p, "deep": [1, None, {"ü": True}]} for p in ("reads", "writes")]
    assert [shop.task(task_id).result for task_id in ids] == [*wanted, None]


def test_r17_a_result_that_has_no_form_is_a_failure(shop: Shop, run_worker: RunWorker) -> None:
    """What can not be stored fails the attempt, with the effects rolled back, and says where the fault is."""

    @shop.engine.task("stores", store_result=True, retry=ONCE)
    def stores(payload: Any) -> Any:
        add(shop, f"never {payload}")
        return {"inner": object()} if payload == "odd" else "x" * 2_000_000

    odd, large = shop.enqueue("stores", "odd"), shop.enqueue("stores", "large")
    run_worker(shop)
    assert [shop.wait_for(task_id).status for task_id in (odd, large)] == ["DEAD"] * 2
    assert "result" in (shop.task(odd).last_error or "")
    assert "inner" in (shop.task(odd).last_error or "")
    assert shop.effects() == []


def test_r26_succeeded_tasks_of_no_retention_are_deleted_at_completion(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """``succeeded=0`` removes a task in the transaction that completes it, fenced like any completion."""
    shop = make_shop(TASKENGINE_RETENTION={"succeeded": 0})

    @shop.engine.task("writes", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def writes(payload: Any) -> None:
        add(shop, f"effect {current_task.task_id}")
        if payload == "robbed":
            steal(shop, current_task.task_id)

    @shop.engine.task("idle")
    def idle(payload: Any) -> None:
        """Do nothing."""

    @shop.engine.task("fails", retry=ONCE)
    def fails(payload: Any) -> None:
        raise ValueError("kept")

    dead, robbed = shop.enqueue("fails"), shop.enqueue("writes", "robbed")
    ids = [shop.enqueue("writes"), shop.enqueue("idle")]
    run_worker(shop)
    wait_until(lambda: {task.id for task in shop.tasks()} == {dead, robbed})
    wait_until(lambda: shop.task(dead).status is TaskStatus.DEAD)
    wait_until(lambda: shop.task(robbed).claims == 2)
    assert shop.effects() == [f"effect {ids[0]}"]
    assert shop.task(robbed).status == "RUNNING"

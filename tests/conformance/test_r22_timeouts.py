"""R22: a handler that takes too long is ended, and its slot is free again."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import RetryPolicy, TaskStatus, current_task
from tests.support.shop import Effect, Events, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

ONCE = RetryPolicy(max_attempts=1)
COUNTING = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000000) SELECT count(*) FROM n"


def long_statement(shop: Shop) -> sa.TextClause:
    """Return a statement that takes minutes."""
    return sa.text("SELECT pg_sleep(120)" if shop.is_postgresql else COUNTING)


def spin() -> None:
    """Run Python code until an interrupt ends it; half a minute at most."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        threading.Event().wait(0.005)


def test_r22_the_statement_in_flight_is_cancelled(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """A handler that waits for the database is ended at its deadline, with its effects rolled back."""

    @shop.engine.task("slow", timeout=1, retry=ONCE)
    def slow(payload: Any) -> None:
        shop.db.session.add(Effect(name="never"))
        shop.db.session.flush()
        shop.db.session.execute(long_statement(shop))

    task_id = shop.enqueue("slow")
    started = time.monotonic()
    worker = run_worker(shop)
    task = shop.wait_for(task_id, timeout=30)
    assert time.monotonic() - started < 25
    assert (task.status, task.attempts, task.last_error) == ("DEAD", 1, "TaskTimedOut: timed out after 1 s")
    assert "in slow" in shop.attempts(task_id)[0]["traceback"]
    assert shop.effects() == []
    assert worker.executor.abandoned == 0
    wait_until(lambda: events.names(task_id)[-2:] == ["task_timed_out", "task_dead"])
    assert events.of("task_timed_out")[0]["timeout"] == 1


def test_r22_a_thread_that_computes_is_interrupted(shop: Shop, run_worker: RunWorker) -> None:
    """Python code is ended by an exception that ``except Exception`` lets pass; clean-up runs, and a retry follows."""
    cleaned: list[int] = []

    @shop.engine.task("spins", timeout=0.3, retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def spins(payload: Any) -> None:
        try:
            try:
                spin()
            except Exception:  # noqa: BLE001 - what is tested.
                cleaned.append(-1)
        finally:
            cleaned.append(current_task.attempt)

    task_id = shop.enqueue("spins")
    worker = run_worker(shop)
    task = shop.wait_for(task_id, timeout=30)
    assert (task.status, task.attempts) == ("DEAD", 2)
    assert [a["message"] for a in shop.attempts(task_id)] == ["timed out after 0.3 s"] * 2
    assert cleaned == [1, 2]
    assert worker.executor.abandoned == 0


def test_r22_a_blocked_thread_is_given_up_and_its_slot_is_free(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """The one slot serves the next task while the blocked thread still hangs, whose late end changes nothing (faults P115)."""
    release = threading.Event()
    inside = threading.Event()

    @shop.engine.task("blocked", timeout=0.5, retry=ONCE)
    def blocked(payload: Any) -> None:
        shop.db.session.add(Effect(name="never"))
        inside.set()
        release.wait(60)

    @shop.engine.task("next")
    def following(payload: Any) -> None:
        shop.db.session.add(Effect(name="next"))

    task_id = shop.enqueue("blocked")
    worker = run_worker(shop, 1)
    try:
        assert inside.wait(20)
        later = shop.enqueue("next")
        assert shop.wait_for(later, timeout=30).status is TaskStatus.SUCCEEDED
        assert not release.is_set()
        task = shop.wait_for(task_id)
        assert (task.status, task.last_error) == ("DEAD", "TaskTimedOut: timed out after 0.5 s")
        assert worker.executor.abandoned == 1
    finally:
        release.set()
    wait_until(lambda: sum(thread.name.startswith("taskengine-slot") for thread in threading.enumerate()) == 1)
    assert shop.effects() == ["next"]
    assert shop.task(task_id) == task
    assert [a["attempt"] for a in shop.attempts(task_id)] == [1]


# The interrupt may strike between the making of a connection and its place in the pool; libpq closes what nobody holds.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_r22_a_handler_that_swallows_the_interrupt_has_timed_out(shop: Shop, run_worker: RunWorker) -> None:
    """Its work is rolled back, however it ends after its deadline."""

    @shop.engine.task("stubborn", timeout=0.3, retry=ONCE)
    def stubborn(payload: Any) -> None:
        shop.db.session.add(Effect(name="never"))
        shop.db.session.flush()
        try:
            spin()
        except BaseException:  # noqa: BLE001 - what is tested.
            shop.db.session.add(Effect(name="neither"))

    task = shop.wait_for(start_and(shop, run_worker, "stubborn"), timeout=30)
    assert (task.status, task.last_error) == ("DEAD", "TaskTimedOut: timed out after 0.3 s")
    assert shop.effects() == []


def start_and(shop: Shop, run_worker: RunWorker, task_type: str) -> int:
    """Start a worker, then enqueue one task."""
    run_worker(shop)
    return shop.enqueue(task_type)


def test_r22_which_timeout_holds(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """The setting of the type wins over the processor's, that over the default; ``None`` is no timeout at all."""
    shop = make_shop(TASKENGINE_DEFAULT_TIMEOUT="40s", TASKENGINE_TIMEOUT={"set": "20s", "unset": None})

    def left(payload: Any) -> float | None:
        deadline = current_task.deadline
        return None if deadline is None else deadline - time.monotonic()

    shop.engine.task("set", timeout=10, store_result=True)(left)
    shop.engine.task("unset", timeout=10, store_result=True)(left)
    shop.engine.task("own", timeout="30s", store_result=True)(left)
    shop.engine.task("none", timeout=None, store_result=True)(left)
    shop.engine.task("default", store_result=True)(left)
    ids = shop.enqueue_many("set", "unset", "own", "none", "default")
    run_worker(shop)
    shop.wait_for_all(ids)
    results = [shop.task(task_id).result for task_id in ids]
    wanted = [20, None, 30, None, 40]
    assert [None if result is None else round(result, -1) for result in results] == wanted


def test_r22_no_cancel_hits_another_task(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Tasks that end right at their deadline leave no late cancel behind: their one connection serves the next unharmed."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"pool_size": 1, "max_overflow": 0})
    short = 0.06

    @shop.engine.task("edge", timeout=short, retry=ONCE)
    def edge(payload: int) -> None:
        deadline = current_task.deadline or 0.0
        shop.db.session.add(Effect(name=f"edge {payload}"))
        shop.db.session.flush()
        # From a little before the deadline to a little after it.
        left = deadline - time.monotonic() + (payload % 10 - 5) / 1000
        statement = f"SELECT pg_sleep({max(0.0, left)})" if shop.is_postgresql else "SELECT 1"
        shop.db.session.execute(sa.text(statement))
        while time.monotonic() < deadline + (payload % 10 - 5) / 1000:
            shop.db.session.execute(sa.text("SELECT 1"))

    @shop.engine.task("witness", timeout=None, retry=ONCE)
    def witness(payload: int) -> None:
        for _ in range(3):
            shop.db.session.execute(sa.text("SELECT pg_sleep(0.01)" if shop.is_postgresql else "SELECT count(*) FROM effect"))
        shop.db.session.add(Effect(name=f"witness {payload}"))

    with shop.app.app_context():
        rows = [{"type": task_type, "payload": n} for n in range(50) for task_type in ("edge", "witness")]
        ids = [made.id for made in shop.engine.enqueue_many(rows)]
        shop.db.session.commit()
    worker = run_worker(shop, 1)
    ended = [shop.wait_for(task_id, timeout=45) for task_id in ids]
    edges, witnesses = ended[::2], ended[1::2]
    assert [task.last_error for task in witnesses if task.status != "SUCCEEDED"] == []
    assert {task.last_error for task in edges if task.status != "SUCCEEDED"} <= {"TaskTimedOut: timed out after 0.06 s"}
    kept = {f"edge {task.payload}" for task in edges if task.status == "SUCCEEDED"} | {f"witness {n}" for n in range(50)}
    assert set(shop.effects()) == kept
    assert worker.executor.abandoned == 0
    pool: Any
    with shop.app.app_context():
        pool = shop.db.engine.pool
    wait_until(lambda: pool.checkedout() == 0)


def test_r22_a_connection_that_was_given_back_is_not_cancelled(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """A handler gives its connection back and overruns; another task that works on it meanwhile is not disturbed."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"pool_size": 1, "max_overflow": 0})
    given_back = threading.Event()

    @shop.engine.task("overruns", timeout=1, retry=ONCE)
    def overruns(payload: Any) -> None:
        shop.db.session.execute(sa.text("SELECT 1"))
        shop.db.session.remove()
        given_back.set()
        spin()

    @shop.engine.task("works", timeout=None, retry=ONCE)
    def works(payload: Any) -> None:
        statement = "SELECT pg_sleep(0.1)" if shop.is_postgresql else COUNTING.replace("2000000000", "100000")
        shop.db.session.execute(sa.text("SELECT 1"))
        driver: Any = shop.db.session.connection().connection.driver_connection
        while shop.task(overrun).status == "RUNNING":
            shop.db.session.execute(sa.text(statement)).all()
        assert driver is shop.db.session.connection().connection.driver_connection
        shop.db.session.add(Effect(name="whole"))

    overrun = shop.enqueue("overruns")
    run_worker(shop, 2)
    assert given_back.wait(20)
    assert shop.wait_for(shop.enqueue("works"), timeout=30).status is TaskStatus.SUCCEEDED
    assert shop.task(overrun).last_error == "TaskTimedOut: timed out after 1 s"
    assert shop.effects() == ["whole"]


# --- cancel of a running task ---------------------------------------------------------------------------------------------


def cancel(shop: Shop, task_id: int) -> None:
    """Ask for the end of a task, as a request would."""
    with shop.app.app_context():
        shop.engine.cancel(task_id)
        shop.db.session.commit()


@pytest.mark.parametrize("reacts", ["looks", "interrupted", "statement", "blocked"])
def test_r22_cancelling_a_running_task_ends_it(make_shop: MakeShop, run_worker: RunWorker, reacts: str) -> None:
    """However the handler reacts, or does not, the row stays RUNNING until it has ended, and becomes CANCELLED then."""
    shop = make_shop(TASKENGINE_HEARTBEAT_INTERVAL=1, TASKENGINE_LEASE=30)
    inside, release = threading.Event(), threading.Event()

    @shop.engine.task("runs", timeout=None)
    def runs(payload: Any) -> None:
        context = current_task._get_current_object()  # type: ignore[attr-defined]
        if reacts != "looks" and (shop.is_postgresql or reacts != "statement"):
            shop.db.session.add(Effect(name="never"))
        inside.set()
        match reacts:
            case "looks":
                assert context.cancel_event.wait(30)
                assert current_task.cancelled
            case "interrupted":
                spin()
            case "statement":
                shop.db.session.execute(long_statement(shop))
            case _:
                release.wait(60)

    task_id = shop.enqueue("runs")
    worker = run_worker(shop, 1)
    try:
        assert inside.wait(20)
        cancel(shop, task_id)
        task = shop.wait_for(task_id, timeout=30)
    finally:
        release.set()
    assert (task.status, task.attempts) == ("CANCELLED", 1)
    assert task.cancel_requested_at is not None
    assert task.finished_at is not None
    assert shop.effects() == []
    assert worker.executor.abandoned == (reacts == "blocked")


def test_r22_a_cancel_is_seen_within_a_heartbeat_without_wake_ups(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """With ``WAKEUP = "poll"`` the heartbeat's look at the rows is what brings a cancel to its handler."""
    shop = make_shop(TASKENGINE_WAKEUP="poll", TASKENGINE_POLL_INTERVAL=1, TASKENGINE_HEARTBEAT_INTERVAL=1, TASKENGINE_LEASE=30)
    inside = threading.Event()

    @shop.engine.task("runs", timeout=None)
    def runs(payload: Any) -> None:
        context = current_task._get_current_object()  # type: ignore[attr-defined]
        inside.set()
        assert context.cancel_event.wait(30)

    task_id = shop.enqueue("runs")
    run_worker(shop)
    assert inside.wait(20)
    shop.sql("UPDATE taskengine_task SET cancel_requested_at = created_at WHERE id = :id", id=task_id)
    assert shop.wait_for(task_id, timeout=30).status is TaskStatus.CANCELLED


def test_r22_a_cancelled_failure_is_cancelled(shop: Shop, run_worker: RunWorker) -> None:
    """A task that fails after somebody asked to cancel it is not tried again."""
    inside, go = threading.Event(), threading.Event()

    @shop.engine.task("fails", retry=RetryPolicy(max_attempts=5, base_backoff=0))
    def fails(payload: Any) -> None:
        inside.set()
        assert go.wait(30)
        raise ValueError("anyway")

    task_id = shop.enqueue("fails")
    run_worker(shop)
    assert inside.wait(20)
    cancel(shop, task_id)
    go.set()
    task = shop.wait_for(task_id)
    assert (task.status, task.attempts) == ("CANCELLED", 1)


# --- shutdown -------------------------------------------------------------------------------------------------------------


def test_r22_all_types_stop_within_one_grace_period(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Ten busy types end together: interrupted, released uncounted, due at once, their token raised by the next claim (faults 107)."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"pool_size": 12})
    inside = threading.Semaphore(0)

    def busy(payload: Any) -> None:
        if current_task.token > 1:
            return
        shop.db.session.add(Effect(name=f"never {current_task.task_id}"))
        inside.release()
        spin()

    types = [f"busy{n}" for n in range(10)]
    for task_type in types:
        shop.engine.task(task_type, timeout=None)(busy)
    ids = shop.enqueue_many(*types)
    worker = run_worker(shop, 10)
    for _ in types:
        assert inside.acquire(timeout=20)
    started = time.monotonic()
    assert worker.stop(1)
    # One after the other they would take ten.
    assert time.monotonic() - started < 9
    released = [shop.task(task_id) for task_id in ids]
    assert [(t.status, t.attempts, t.claims, t.last_error) for t in released] == [("PENDING", 0, 1, None)] * 10
    assert all(shop.seconds_until_due(task_id) <= 0 for task_id in ids)
    assert shop.effects() == []
    assert shop.sql("SELECT count(*) FROM taskengine_node")[0][0] == 0
    run_worker(shop, 10)
    shop.wait_for_all(ids)
    assert {(shop.task(task_id).attempts, shop.task(task_id).claims) for task_id in ids} == {(1, 2)}


def test_r22_nothing_is_issued_after_stop(shop: Shop, run_worker: RunWorker) -> None:
    """A second ``stop`` returns the same, and no statement follows the first (faults P53, 110)."""
    seen: list[str] = []

    @shop.engine.task("idle")
    def idle(payload: Any) -> None:
        """Do nothing."""

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    ids = shop.enqueue_many(*["idle"] * 20)
    worker = run_worker(shop)
    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        wait_until(lambda: seen)
        assert worker.stop()
        count = len(seen)
        assert worker.stop() is True
        worker.wake()
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("taskengine-")]
        assert len(seen) == count
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert threads == []
    assert {shop.task(task_id).status for task_id in ids} <= {TaskStatus.SUCCEEDED, TaskStatus.PENDING}
    assert all(task.attempts == (task.status == "SUCCEEDED") for task in shop.tasks())


def test_r22_tasks_that_end_within_the_grace_period_are_completed(shop: Shop, run_worker: RunWorker) -> None:
    """A stop claims nothing more, and what ends in time is recorded before it returns."""
    inside, go = threading.Event(), threading.Event()

    @shop.engine.task("ends")
    def ends(payload: Any) -> None:
        inside.set()
        assert go.wait(30)
        shop.db.session.add(Effect(name="ended"))

    task_id = shop.enqueue("ends")
    worker = run_worker(shop, 1)
    assert inside.wait(20)
    waiting = shop.enqueue("ends")
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    go.set()
    stopping.join(30)
    assert not stopping.is_alive()
    assert (shop.task(task_id).status, shop.task(waiting).status) == ("SUCCEEDED", "PENDING")
    assert shop.effects() == ["ended"]

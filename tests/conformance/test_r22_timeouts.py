"""R22, R13: a handler that overruns its timeout, or whose task is cancelled, is ended; its thread is never lost to the pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from flask_taskengine import LeaseLostError, RetryPolicy, TaskCancelled, TaskContext, TaskInterrupt, TaskTimedOut
from flask_taskengine.runtime import executor
from tests.support.shop import Effect, Events, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

ONCE = RetryPolicy(max_attempts=1)
LONG = 30.0
"""Seconds: a test fails long before a handler comes back by itself."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up threads, and interrupt cancelled handlers, after fractions of a second."""
    monkeypatch.setattr(executor, "ABANDON_AFTER", 0.5)
    monkeypatch.setattr(executor, "CANCEL_GRACE", 0.3)


@pytest.fixture
def blocker() -> Iterator[threading.Event]:
    """Return an event on which a handler blocks as a C call would: no interrupt wakes it; it is set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def spin() -> None:
    """Run Python code for a long time."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pass


def slow_statement(shop: Shop) -> sa.TextClause:
    """Return a statement that takes long inside the database."""
    if shop.is_postgresql:
        return sa.text(f"SELECT pg_sleep({LONG})")
    return sa.text("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")


# --- timeout ------------------------------------------------------------------------------------------------------------------


def test_r22_python_code_is_interrupted(shop: Shop, events: Events, run_worker: RunWorker) -> None:
    """A loop ends with TaskTimedOut, which ``except Exception`` does not catch; the attempt counts, its work is rolled back."""
    caught: list[type[BaseException]] = []

    @shop.engine.task("spin", timeout="300ms", retry=ONCE)
    def handle(payload: Any) -> None:
        shop.db.session.add(Effect(name="lost"))
        shop.db.session.flush()
        try:
            with suppress(Exception):
                spin()
        except BaseException as error:
            caught.append(type(error))
            raise

    run_worker(shop)
    task = shop.wait_for(shop.enqueue("spin"))
    assert caught == [TaskTimedOut]
    assert issubclass(TaskTimedOut, TaskInterrupt)
    assert not issubclass(TaskInterrupt, Exception)
    assert (task.status, task.last_error) == ("DEAD", "TaskTimedOut: timed out after 0.3 s")
    assert shop.effects() == []
    (attempt,) = shop.attempts(task.id)
    assert "in spin" in attempt["traceback"]
    wait_until(lambda: "task_dead" in events.names(task.id), what="the events")
    assert events.names(task.id)[-2:] == ["task_timed_out", "task_dead"]
    assert events.of("task_timed_out")[0]["timeout"] == pytest.approx(0.3)


def test_r22_a_timeout_is_retried(shop: Shop, run_worker: RunWorker) -> None:
    """It is a failure like any other: backoff, the next attempt, success."""

    @shop.engine.task("slow once", timeout="200ms", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def handle(payload: Any, context: TaskContext) -> None:
        if context.attempt == 1:
            spin()

    run_worker(shop)
    assert shop.wait_for(shop.enqueue("slow once")).attempts == 2


@pytest.mark.parametrize("session", ["db.session", "own"])
def test_r22_a_statement_in_flight_is_cancelled(shop: Shop, run_worker: RunWorker, session: str) -> None:
    """Also one that runs inside the database for half a minute, in ``db.session`` or a session of the handler's own."""

    @shop.engine.task("query", timeout="300ms", retry=ONCE)
    def handle(payload: Any) -> None:
        if session == "own":
            with Session(shop.db.engine) as own:
                own.execute(slow_statement(shop))
        else:
            shop.db.session.execute(slow_statement(shop))

    worker = run_worker(shop)
    task = shop.wait_for(shop.enqueue("query"))
    assert (task.status, task.last_error) == ("DEAD", "TaskTimedOut: timed out after 0.3 s")
    assert worker.executor.abandoned == 0


def test_r22_a_cancelled_statement_does_not_reach_the_next_task(shop: Shop, run_worker: RunWorker) -> None:
    """The connection is thrown away with the cancel that may still be on its way; what runs next is not hit."""

    @shop.engine.task("query", timeout="100ms", retry=ONCE)
    def query(payload: Any) -> None:
        shop.db.session.execute(slow_statement(shop))

    @shop.engine.task("write", retry=ONCE)
    def write(payload: int) -> None:
        for _ in range(20):
            shop.db.session.execute(sa.text("SELECT 1"))
        shop.db.session.add(Effect(name=f"effect {payload}"))

    run_worker(shop, concurrency=2)
    with shop.app.app_context():
        made = shop.engine.enqueue_many({"type": "write" if n % 4 else "query", "payload": n} for n in range(24))
        shop.db.session.commit()
    tasks = [shop.wait_for(one.id) for one in made]
    assert [task.status for task in tasks] == ["SUCCEEDED" if n % 4 else "DEAD" for n in range(24)]
    assert {task.last_error for task in tasks if task.type == "query"} == {"TaskTimedOut: timed out after 0.1 s"}
    assert len(shop.effects()) == 18


def test_r22_only_connections_that_the_handler_holds_are_cancelled(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """A handler that has given its connection back, which another task has got by now, is interrupted without hitting that one."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"pool_size": 1, "max_overflow": 0, "pool_timeout": 30})
    given_back, taken = threading.Event(), threading.Event()

    @shop.engine.task("first", timeout="500ms", retry=ONCE)
    def first(payload: Any) -> None:
        shop.db.session.execute(sa.text("SELECT 1"))
        shop.db.session.commit()
        with shop.db.engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
        given_back.set()
        assert taken.wait(10)
        spin()

    @shop.engine.task("second", retry=ONCE)
    def second(payload: Any) -> None:
        assert given_back.wait(10)
        shop.db.session.execute(sa.text("SELECT 1"))
        taken.set()
        seconds = 2.0
        if shop.is_postgresql:
            shop.db.session.execute(sa.text(f"SELECT pg_sleep({seconds})"))
        else:
            busy = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT count(*) FROM n"
            shop.db.session.execute(sa.text(busy))
        shop.db.session.add(Effect(name="second"))

    run_worker(shop, concurrency=2)
    ids = shop.enqueue_many("first", "second")
    assert shop.wait_for(ids[0]).last_error == "TaskTimedOut: timed out after 0.5 s"
    task = shop.wait_for(ids[1])
    assert (task.status, task.last_error) == ("SUCCEEDED", None)
    assert shop.effects() == ["second"]


def test_r22_a_thread_that_does_not_come_back_is_given_up(shop: Shop, run_worker: RunWorker, blocker: threading.Event) -> None:
    """The task fails, another thread takes the slot, and whatever the lost one still does is void."""
    late: list[BaseException] = []

    @shop.engine.task("block", timeout="200ms", retry=ONCE)
    def block(payload: Any) -> None:
        try:
            blocker.wait(LONG)
        except TaskInterrupt:
            blocker.wait(LONG)
        shop.db.session.add(Effect(name="late"))
        try:
            shop.db.session.commit()
        except BaseException as error:
            late.append(error)
            raise

    shop.engine.task("next")(lambda payload: None)
    worker = run_worker(shop, concurrency=1)
    task_id = shop.enqueue("block")
    assert shop.wait_for(task_id).status == "DEAD"
    shop.wait_for_all(shop.enqueue_many(*["next"] * 3))
    assert worker.executor.abandoned == 1
    blocker.set()
    wait_until(lambda: late, what="the late commit")
    assert isinstance(late[0], LeaseLostError)
    assert shop.effects() == []
    assert (shop.task(task_id).status, len(shop.attempts(task_id))) == ("DEAD", 1)


def test_r22_a_handler_that_swallows_the_interrupt_has_timed_out_all_the_same(shop: Shop, run_worker: RunWorker) -> None:
    """``except BaseException`` does not make a success of it."""

    @shop.engine.task("stubborn", timeout="200ms", retry=ONCE)
    def stubborn(payload: Any) -> None:
        shop.db.session.add(Effect(name="lost"))
        with suppress(BaseException):
            spin()

    run_worker(shop)
    assert shop.wait_for(shop.enqueue("stubborn")).last_error == "TaskTimedOut: timed out after 0.2 s"
    assert shop.effects() == []


def test_r22_property_over_processor_over_default(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Which timeout is in force shows in the handler's deadline; None is none."""
    shop = make_shop(TASKENGINE_DEFAULT_TIMEOUT=100, TASKENGINE_TIMEOUT={"property": "5m", "no more": None})
    left: dict[str, float | None] = {}

    def look(payload: Any, context: TaskContext) -> None:
        left[context.type] = None if context.deadline is None else context.deadline - time.monotonic()

    shop.engine.task("default")(look)
    shop.engine.task("processor", timeout=200)(look)
    shop.engine.task("none", timeout=None)(look)
    shop.engine.task("property", timeout=200)(look)
    shop.engine.task("no more", timeout=200)(look)
    run_worker(shop)
    shop.wait_for_all(shop.enqueue_many("default", "processor", "none", "property", "no more"))
    assert left["none"] is left["no more"] is None
    assert {name: round(seconds, -1) for name, seconds in left.items() if seconds is not None} == {
        "default": 100,
        "processor": 200,
        "property": 300,
    }


def test_r22_timeouts_at_the_very_end_of_handlers(shop: Shop, run_worker: RunWorker) -> None:
    """Handlers that end just when they time out: each is either a success with its work or a timeout without it, and no slot is lost."""

    @shop.engine.task("race", timeout="30ms", retry=ONCE)
    def race(payload: int, context: TaskContext) -> None:
        shop.db.session.add(Effect(name=f"effect {payload}"))
        assert context.deadline is not None
        while time.monotonic() < context.deadline + (payload % 10 - 5) * 0.0005:
            pass

    worker = run_worker(shop, concurrency=2)
    with shop.app.app_context():
        made = shop.engine.enqueue_many({"type": "race", "payload": n} for n in range(60))
        shop.db.session.commit()
    tasks = [shop.wait_for(one.id, timeout=30) for one in made]
    succeeded = {f"effect {task.payload}" for task in tasks if task.status == "SUCCEEDED"}
    assert set(shop.effects()) == succeeded
    assert {task.last_error for task in tasks if task.status == "DEAD"} <= {"TaskTimedOut: timed out after 0.03 s"}
    wait_until(lambda: worker.slots.in_use == 0, what="the slots")
    assert worker.executor.abandoned == 0


# --- cancel -------------------------------------------------------------------------------------------------------------------


def cancel(shop: Shop, task_id: int) -> None:
    """Cancel a task as a request would."""
    with shop.app.app_context():
        shop.engine.cancel(task_id)
        shop.db.session.commit()


def test_r13_a_cancel_request_reaches_the_handler(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Within moments, however long the heartbeat interval is; a handler that looks and returns keeps its work, and is CANCELLED."""
    shop = make_shop(TASKENGINE_HEARTBEAT_INTERVAL=30)
    inside = threading.Event()

    @shop.engine.task("polite")
    def polite(payload: Any, context: TaskContext) -> None:
        inside.set()
        assert context.cancel_event.wait(LONG)
        assert context.cancelled
        shop.db.session.add(Effect(name="what was done until then"))

    worker = run_worker(shop)
    wait_until(lambda: worker.notifier.settled, what="the notifier")
    task_id = shop.enqueue("polite")
    assert inside.wait(10)
    cancel(shop, task_id)
    task = shop.wait_for(task_id, timeout=5)
    assert (task.status, task.last_error) == ("CANCELLED", None)
    assert task.finished_at is not None
    assert shop.effects() == ["what was done until then"]


@pytest.mark.parametrize("kind", ["python", "statement"])
def test_r13_a_handler_that_does_not_look_is_interrupted(shop: Shop, events: Events, run_worker: RunWorker, kind: str) -> None:
    """After a grace: its statement is cancelled, its code gets TaskCancelled, its work is rolled back; no attempt has failed."""
    inside, caught = threading.Event(), []

    @shop.engine.task("deaf", timeout=None)
    def deaf(payload: Any) -> None:
        if kind == "python":
            shop.db.session.add(Effect(name="lost"))
        inside.set()
        try:
            spin() if kind == "python" else shop.db.session.execute(slow_statement(shop))
        except TaskCancelled as error:
            caught.append(error)
            raise

    run_worker(shop)
    task_id = shop.enqueue("deaf")
    assert inside.wait(10)
    cancel(shop, task_id)
    task = shop.wait_for(task_id)
    assert (task.status, shop.attempts(task_id), shop.effects()) == ("CANCELLED", [], [])
    # While a cancelled statement is being cleaned up, the interrupt may strike too.
    assert len(caught) == 1 or kind == "statement"
    wait_until(lambda: "task_cancelled" in events.names(task_id), what="the event")
    assert events.of("task_cancelled")[0]["node"] == task.claimed_by


def test_r13_a_cancel_wins_over_a_failure(shop: Shop, run_worker: RunWorker) -> None:
    """An attempt that fails after the request is not tried again: CANCELLED, with the error it had."""
    inside = threading.Event()

    @shop.engine.task("fails")
    def fails(payload: Any, context: TaskContext) -> None:
        inside.set()
        context.cancel_event.wait(LONG)
        raise ValueError("while cancelled")

    run_worker(shop)
    task_id = shop.enqueue("fails")
    assert inside.wait(10)
    cancel(shop, task_id)
    task = shop.wait_for(task_id)
    assert (task.status, task.last_error) == ("CANCELLED", "ValueError: while cancelled")
    with shop.app.app_context():
        shop.engine.retry(task_id)
        shop.db.session.commit()
    inside.clear()
    assert inside.wait(10)
    cancel(shop, task_id)
    shop.wait_for(task_id)


def test_r13_a_cancelled_task_that_waits_never_runs(shop: Shop, run_worker: RunWorker) -> None:
    """Cancelled while it was PENDING, it is not claimed any more."""
    calls: list[Any] = []
    shop.engine.task("a")(calls.append)
    first, second = shop.enqueue("a", 1), shop.enqueue("a", 2)
    cancel(shop, first)
    run_worker(shop)
    shop.wait_for(second)
    assert calls == [2]
    assert shop.task(first).claims == 0

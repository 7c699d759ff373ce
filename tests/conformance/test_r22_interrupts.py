"""R22, R13: a handler that overruns its timeout, or whose task is cancelled, is ended; its thread is never lost to the pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from flask_taskengine import RetryPolicy, TaskContext
from flask_taskengine.runtime import executor
from tests.support.shop import Effect, Shop
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

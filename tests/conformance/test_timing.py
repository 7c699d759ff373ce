"""What is promised in milliseconds; run with nothing beside it."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import RetryPolicy, TaskContext
from flask_taskengine.store.clock import seconds_since
from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timing


def lateness(shop: Shop, task_id: int) -> float:
    """Return the seconds since a task was due, by the database's clock; asked inside its handler."""
    task = shop.dialect.tables.task
    late = shop.db.session.execute(sa.select(seconds_since(task.c.available_at)).where(task.c.id == task_id)).scalar_one()
    return float(late)


def test_r18_a_delayed_task_starts_within_50_ms_of_its_time(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """With a poll interval of a minute, whatever else waits for later; never before its time."""
    shop = make_shop(TASKENGINE_POLL_INTERVAL=60)
    late: list[float] = []

    @shop.engine.task("later")
    def later(payload: Any, context: TaskContext) -> None:
        late.append(lateness(shop, context.task_id))

    worker = run_worker(shop)
    wait_until(lambda: worker.notifier.settled, what="the notifier")
    with shop.app.app_context():
        shop.engine.enqueue_after("later", None, 3600, priority=9)
        for n in range(9):
            shop.engine.enqueue_after("later", None, 0.3 + n * 0.1)
        shop.db.session.commit()
    wait_until(lambda: len(late) == 9, timeout=15, what="nine tasks")
    assert min(late) >= 0
    assert statistics.median(late) < 0.05


def test_r06_a_retried_task_starts_within_50_ms_of_its_time(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """The same for a backoff."""
    shop = make_shop(TASKENGINE_POLL_INTERVAL=60)
    late: list[float] = []

    @shop.engine.task("fails", retry=RetryPolicy(max_attempts=8, base_backoff="200ms", multiplier=1, jitter=0))
    def fails(payload: Any, context: TaskContext) -> None:
        late.append(lateness(shop, context.task_id))
        raise ValueError

    run_worker(shop)
    assert shop.wait_for(shop.enqueue("fails"), timeout=15).status == "DEAD"
    assert min(late) >= 0
    assert statistics.median(late[1:]) < 0.05


def test_r11_a_row_by_hand_starts_as_fast_as_an_enqueued_one(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Within 100 ms of its commit while the worker sleeps, from ``enqueue`` and from plain SQL."""
    shop = make_shop(TASKENGINE_POLL_INTERVAL=60)
    late: dict[str, list[float]] = {"enqueued": [], "by hand": []}

    def start(payload: Any, context: TaskContext) -> None:
        late[context.type].append(lateness(shop, context.task_id))

    for name in late:
        shop.engine.task(name)(start)
    worker = run_worker(shop)
    wait_until(lambda: worker.notifier.settled, what="the notifier")
    for n in range(1, 8):
        shop.enqueue("enqueued")
        shop.sql("INSERT INTO taskengine_task (type) VALUES ('by hand')")
        wait_until(lambda: [len(times) for times in late.values()] == [n, n], what="both")  # noqa: B023
    assert statistics.median(late["enqueued"]) < 0.1
    assert statistics.median(late["by hand"]) < 0.1

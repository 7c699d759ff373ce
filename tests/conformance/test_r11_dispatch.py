"""R4, R6b, R11, R14: a worker starts what is due at once and in order, wherever the row comes from, and what that costs."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from flask_taskengine import RetryPolicy, TaskStatus
from flask_taskengine.signals import task_succeeded
from tests.support.shop import Effect, Events, Shop, statements_of
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

# --- which types ------------------------------------------------------------------------------------------------------------


def test_r08_a_type_that_this_node_does_not_know_is_left_to_others(shop: Shop, make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Neither claimed nor counted; a node that knows it runs it."""
    shop.engine.task("known")(lambda payload: None)
    other = make_shop()
    other.engine.task("foreign")(lambda payload: None)
    foreign, known = shop.enqueue_many("foreign", "known")
    run_worker(shop)
    shop.wait_for(known)
    task = shop.task(foreign)
    assert (task.status, task.attempts, task.claims) == ("PENDING", 0, 0)
    run_worker(other)
    assert shop.wait_for(foreign).status == "SUCCEEDED"


def test_r02_a_worker_may_take_some_types_only(shop: Shop, run_worker: RunWorker) -> None:
    """``types`` restricts what it claims to some of what the app knows."""
    for name in ("a", "b"):
        shop.engine.task(name)(lambda payload: None)
    a, b = shop.enqueue_many("a", "b")
    run_worker(shop, types=frozenset({"b"}))
    shop.wait_for(b)
    assert shop.task(a).status == "PENDING"


# --- wake-ups ---------------------------------------------------------------------------------------------------------------


def test_r11_a_sleeping_worker_starts_at_once(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """With a poll interval of a minute: enqueued, by hand, retried by hand, resumed and moved to now, each starts within 2 s."""
    shop = make_shop(TASKENGINE_POLL_INTERVAL=60)
    shop.engine.task("a")(lambda payload: None)
    worker = run_worker(shop)
    wait_until(lambda: worker.notifier.settled, what="the notifier")

    def starts(change: Callable[[], object]) -> None:
        change()
        wait_until(lambda: all(task.status == "SUCCEEDED" for task in shop.tasks()), timeout=2, what="the task to run")

    starts(lambda: shop.enqueue("a"))
    starts(lambda: shop.sql("INSERT INTO taskengine_task (type) VALUES ('a')"))
    shop.sql("UPDATE taskengine_task SET status = 'DEAD'")
    with shop.app.app_context():

        def retry() -> None:
            shop.engine.retry(shop.tasks()[0].id)
            shop.db.session.commit()

        shop.sql(f"DELETE FROM taskengine_task WHERE id > {shop.tasks()[0].id}")
        starts(retry)
        later = shop.engine.enqueue_after("a", None, 3600)
        shop.db.session.commit()
    now = "statement_timestamp()" if shop.is_postgresql else "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    starts(lambda: shop.sql(f"UPDATE taskengine_task SET available_at = {now} WHERE id = {later.id}"))
    shop.sql(f"INSERT INTO taskengine_type (type, paused_at) VALUES ('a', {now})")
    shop.enqueue("a")
    starts(lambda: shop.sql("DELETE FROM taskengine_type"))


def test_r06b_many_rows_by_hand_run(shop: Shop, run_worker: RunWorker) -> None:
    """INSERT .. SELECT in plain SQL, with a payload, while the worker sleeps."""
    seen: list[Any] = []
    shop.engine.task("by hand")(seen.append)
    run_worker(shop)
    numbers = " UNION ALL ".join(f"SELECT {n} AS n" for n in range(20))
    payload = "to_jsonb(n)" if shop.is_postgresql else "n"
    shop.sql(f"INSERT INTO taskengine_task (type, payload) SELECT 'by hand', {payload} FROM ({numbers}) AS numbers")
    wait_until(lambda: len(seen) == 20, timeout=2, what="20 tasks")
    assert sorted(seen) == list(range(20))


def test_r11_wakeup_poll_finds_tasks_without_a_notification(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """The poll is the truth: with ``WAKEUP=poll`` nobody listens and everything runs."""
    shop = make_shop(TASKENGINE_WAKEUP="poll", TASKENGINE_POLL_INTERVAL="50ms")
    shop.engine.task("a")(lambda payload: None)
    worker = run_worker(shop)
    task_id = shop.enqueue("a")
    assert shop.wait_for(task_id).status == "SUCCEEDED"
    assert worker.notifier.mode == "poll"


def test_r11_a_retried_task_starts_when_its_backoff_is_over(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """The dispatcher sleeps until then, however long its poll interval is."""
    shop = make_shop(TASKENGINE_POLL_INTERVAL=60)

    @shop.engine.task("boom", retry=RetryPolicy(max_attempts=3, base_backoff="200ms", multiplier=1, jitter=0))
    def boom(payload: Any) -> None:
        raise ValueError

    run_worker(shop)
    task_id = shop.enqueue("boom")
    assert shop.wait_for(task_id, timeout=20).attempts == 3
    for earlier, later in itertools.pairwise(shop.attempts(task_id)):
        assert later["started_at"] - earlier["started_at"] >= timedelta(milliseconds=200)


# --- concurrency ------------------------------------------------------------------------------------------------------------


def test_r14_a_batch_is_started_in_order(shop: Shop, run_worker: RunWorker) -> None:
    """One slot: everything runs in the order of priority, due time and id, over several claims."""
    order: list[int] = []
    for name in ("a", "b"):
        shop.engine.task(name)(order.append)
    with shop.app.app_context():
        shop.engine.enqueue_many({"type": "ab"[n % 2], "payload": n, "priority": n % 5} for n in range(30))
        shop.db.session.commit()
    expected = [task.payload for task in sorted(shop.tasks(), key=lambda task: (-task.priority, task.available_at, task.id))]
    run_worker(shop, concurrency=1)
    wait_until(lambda: len(order) == 30, what="30 tasks")
    assert order == expected


def test_r04_a_claimed_row_is_a_started_row(shop: Shop, run_worker: RunWorker) -> None:
    """Nothing is claimed that has no free slot: no more tasks are RUNNING than handlers are."""
    running, release = [], threading.Event()

    @shop.engine.task("a")
    def wait(payload: Any) -> None:
        running.append(payload)
        release.wait(10)

    ids = shop.enqueue_many(*["a"] * 12)
    run_worker(shop, concurrency=3)
    wait_until(lambda: len(running) == 3, what="3 handlers")
    shop.enqueue("a")
    assert [task.status for task in shop.tasks()].count(TaskStatus.RUNNING) == 3
    assert len(running) == 3
    release.set()
    shop.wait_for_all(ids)


def test_r04_two_workers_share_the_work(shop: Shop, make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Every task runs once, on one of two nodes, and both have something to do."""
    numbers: list[int] = []
    barrier = threading.Barrier(2)
    shops = [shop, make_shop()]
    for one in shops:

        @one.engine.task("first")
        def meet(payload: Any) -> None:
            barrier.wait(10)

        one.engine.task("a")(numbers.append)
    shop.enqueue_many("first", "first")
    with shop.app.app_context():
        ids = [made.id for made in shop.engine.enqueue_many({"type": "a", "payload": n} for n in range(100))]
        shop.db.session.commit()
    for one in shops:
        run_worker(one, concurrency=1)
    shop.wait_for_all(ids)
    assert sorted(numbers) == list(range(100))
    assert len({task.claimed_by for task in shop.tasks()}) == 2
    assert {task.claims for task in shop.tasks()} == {1}


def test_r02_the_pool_can_be_replaced(shop: Shop, run_worker: RunWorker) -> None:
    """Anything with the ``submit`` and ``shutdown`` of an executor of the standard library runs the handlers."""
    pools: list[ThreadPoolExecutor] = []
    threads: set[str] = set()

    def factory(size: int) -> ThreadPoolExecutor:
        pools.append(ThreadPoolExecutor(size, thread_name_prefix="mine"))
        return pools[0]

    shop.engine.task("a")(lambda payload: threads.add(threading.current_thread().name))
    worker = run_worker(shop, concurrency=2, executor_factory=factory)
    shop.wait_for_all(shop.enqueue_many(*["a"] * 10))
    assert threads
    assert all(name.startswith("mine") for name in threads)
    worker.stop()
    pools[0].shutdown(wait=True)


# --- completion -------------------------------------------------------------------------------------------------------------


def test_r02_completions_are_grouped(shop: Shop, run_worker: RunWorker) -> None:
    """200 tasks that do not use the database share their transactions; on PostgreSQL their statements too, claims included."""
    shop.engine.task("a")(lambda payload: None)
    ids = shop.enqueue_many(*["a"] * 200)
    worker = shop.worker(concurrency=50)
    with statements_of(worker.database.engine) as statements:
        worker.start()
        shop.wait_for_all(ids)
        worker.stop()
    assert len([statement for statement in statements if statement.startswith("BEGIN")]) < 60
    assert not shop.is_postgresql or len(statements) < 100


def test_r02_a_task_that_uses_the_session_costs_one_more_statement(shop: Shop, run_worker: RunWorker) -> None:
    """The completion is one UPDATE in the handler's own transaction, and the worker's own connections write nothing for it."""

    @shop.engine.task("write")
    def write(payload: Any) -> None:
        shop.db.session.execute(sa.insert(Effect).values(name="one"))

    with shop.app.app_context():
        engine = shop.db.engine
    worker = run_worker(shop)
    with statements_of(engine) as statements, statements_of(worker.database.engine) as own:
        task_id = shop.enqueue("write")
        shop.wait_for(task_id)
        wait_until(lambda: worker.slots.in_use == 0, what="the slot")
    assert [statement.split()[0] for statement in statements] == ["INSERT", "INSERT", "UPDATE"]
    assert not [statement for statement in own if "SUCCEEDED" in statement]


# --- events -----------------------------------------------------------------------------------------------------------------


def test_events_of_a_task_that_succeeds(shop: Shop, events: Events, run_worker: RunWorker) -> None:
    """One event per transition, in order, with the node and the attempt of the row."""
    shop.engine.task("a")(lambda payload: None)
    worker = run_worker(shop)
    task_id = shop.enqueue("a")
    wait_until(lambda: "task_succeeded" in events.names(task_id), what="the last event")
    # The commit wakes the worker, so that its claim may be told before the enqueue is.
    wait_until(lambda: "task_enqueued" in events.names(task_id))
    assert [name for name in events.names(task_id) if name != "task_enqueued"] == ["task_claimed", "task_started", "task_succeeded"]
    task = shop.task(task_id)
    for name in ("task_claimed", "task_started", "task_succeeded"):
        (fields,) = events.of(name)
        assert (fields["node"], fields["attempt"], fields["task_type"]) == (task.claimed_by, 1, "a")
    assert task.claimed_by == worker.membership.id
    assert events.of("task_started")[0]["waited"] >= 0
    assert 0 <= events.of("task_succeeded")[0]["duration"] < 5


def test_events_are_sent_after_the_commit(shop: Shop, run_worker: RunWorker) -> None:
    """Whoever hears of a success finds the row SUCCEEDED, in a session of the handler's and without."""
    seen: list[str] = []
    shop.engine.task("plain")(lambda payload: None)
    shop.engine.task("session")(lambda payload: shop.db.session.execute(sa.text("SELECT 1")))

    def receive(_: object, task_id: int, **fields: object) -> None:
        seen.append(shop.task(task_id).status)

    with task_succeeded.connected_to(receive, sender=shop.engine):
        run_worker(shop)
        shop.wait_for_all(shop.enqueue_many("plain", "session"))
        wait_until(lambda: len(seen) == 2, what="both events")
    assert seen == ["SUCCEEDED"] * 2

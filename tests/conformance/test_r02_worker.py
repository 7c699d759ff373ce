"""R2, R6b, R11: a worker runs what is due, through the processor of its type, wherever the row comes from."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from flask import current_app, has_request_context

from flask_taskengine import Enqueued, RetryPolicy, TaskContext, TaskProcessor, TaskStatus, current_task
from flask_taskengine.signals import namespace, task_succeeded
from tests.support.shop import Effect, Events, Shop, statements_of
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

# --- what a handler gets ----------------------------------------------------------------------------------------------------


def test_r02_a_function_runs_with_payload_and_context(shop: Shop, run_worker: RunWorker) -> None:
    """In an app context of its own, with all that the context promises; ``current_task`` is the same context."""
    seen: dict[str, Any] = {}

    @shop.engine.task("email.send", timeout=30)
    def send(payload: Any, context: TaskContext) -> None:
        seen.update(
            payload=payload,
            same=current_task.task_id == context.task_id and current_task.token == context.token,
            app=current_app.name,
            request=has_request_context(),
            context=context,
            left=(context.deadline or 0) - time.monotonic(),
        )

    task_id = shop.enqueue("email.send", {"to": "a"}, idempotency_key="k", max_attempts=3)
    run_worker(shop)
    task = shop.wait_for(task_id)
    assert task.status == "SUCCEEDED"
    context = seen["context"]
    assert (seen["payload"], seen["same"], seen["app"], seen["request"]) == ({"to": "a"}, True, "host", False)
    assert (context.task_id, context.type, context.attempt, context.max_attempts) == (task_id, "email.send", 1, 3)
    assert (context.token, context.idempotency_key, context.enqueued_at) == (task.claims, "k", task.created_at)
    assert (context.cancelled, context.lease_lost) == (False, False)
    assert 0 < seen["left"] <= 30
    with pytest.raises(RuntimeError, match="current_task exists inside a handler only"):
        current_task.task_id  # noqa: B018 - the access is what raises.


def test_r02_processors_of_every_form(shop: Shop, run_worker: RunWorker) -> None:
    """A function, one that takes no context, one under another decorator, and an object: each gets the tasks of its type alone."""
    seen: list[tuple[str, Any]] = []

    def loud(function: Callable[[Any], None]) -> Callable[[Any], None]:
        def wrapper(payload: Any) -> None:
            seen.append(("loud", payload))
            function(payload)

        return wrapper

    @shop.engine.task("function")
    def handle(payload: Any) -> None:
        seen.append(("function", payload))

    @shop.engine.task("wrapped")
    @loud
    def wrapped(payload: Any) -> None:
        seen.append(("wrapped", payload))

    class Report(TaskProcessor[Any]):
        type = "object"

        def process(self, payload: Any, context: TaskContext) -> None:
            seen.append((context.type, payload))

    shop.engine.register(Report())
    with shop.app.app_context():
        made: Enqueued = handle.enqueue(1, priority=9)
        ids = [made.id, *(shop.engine.enqueue(name, n).id for n, name in enumerate(("wrapped", "object"), 2))]
        shop.db.session.commit()
    handle("called by hand")
    run_worker(shop, concurrency=1)
    shop.wait_for_all(ids)
    assert seen == [("function", "called by hand"), ("function", 1), ("loud", 2), ("wrapped", 2), ("object", 3)]


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


def test_r10_five_hundred_effects_exactly_once(shop: Shop, make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Two nodes, handlers that fail every few times after they have written: each effect is there once, and no other."""
    shops = [shop, make_shop()]
    for one in shops:
        register_flaky(one)
    with shop.app.app_context():
        made = shop.engine.enqueue_many({"type": "write", "payload": n, "max_attempts": 10} for n in range(500))
        shop.db.session.commit()
    for one in shops:
        run_worker(one, concurrency=4)
    shop.wait_for_all([one.id for one in made], timeout=40)
    assert sorted(shop.effects()) == sorted(f"effect {n}" for n in range(500))
    tasks = shop.tasks()
    assert sum(task.attempts for task in tasks) == 500 + len(shop.sql("SELECT 1 FROM taskengine_attempt"))
    assert any(task.attempts > 1 for task in tasks)


def register_flaky(shop: Shop) -> None:
    """Register a handler that writes, and then fails in the first attempt of every seventh task."""

    @shop.engine.task("write", retry=RetryPolicy(base_backoff=0))
    def write(payload: int, context: TaskContext) -> None:
        shop.db.session.add(Effect(name=f"effect {payload}"))
        if payload % 7 == 0 and context.attempt == 1:
            shop.db.session.flush()
            raise ConnectionError("the other side does not answer")


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


def test_r26_retention_of_zero_deletes_at_completion(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Whether the handler used the session or not: no row and no failed attempt is left, and the key is free."""
    shop = make_shop(TASKENGINE_RETENTION={"succeeded": 0})

    @shop.engine.task("a", retry=RetryPolicy(base_backoff=0))
    def handle(payload: bool, context: TaskContext) -> None:
        if payload:
            shop.db.session.add(Effect(name=f"effect {context.task_id} {context.attempt}"))
        if context.attempt == 1:
            raise ValueError("once more")

    run_worker(shop)
    for uses_session in (True, False):
        shop.enqueue("a", uses_session, idempotency_key="k")
        wait_until(lambda: not shop.tasks(), what="the row to go")
    assert shop.sql("SELECT count(*) FROM taskengine_attempt")[0][0] == 0
    assert len(shop.effects()) == 1


def test_r02_results_are_kept_where_asked(shop: Shop, run_worker: RunWorker) -> None:
    """``store_result``: what the handler returns stands in the row, whether it used the session or not; else it is dropped."""
    shop.engine.task("plain", store_result=True)(lambda payload: {"sum": [payload, "é"]})
    shop.engine.task("dropped")(lambda payload: "nothing")

    @shop.engine.task("session", store_result=True)
    def in_session(payload: Any) -> int:
        return int(shop.db.session.execute(sa.text("SELECT 42")).scalar_one())

    ids = [shop.enqueue(name, 7) for name in ("plain", "session", "dropped")]
    run_worker(shop)
    assert [shop.wait_for(task_id).result for task_id in ids] == [{"sum": [7, "é"]}, 42, None]


def test_r02_a_result_that_can_not_be_stored_is_a_failure(shop: Shop, run_worker: RunWorker) -> None:
    """It names the place; what the handler has written is rolled back."""

    @shop.engine.task("bad", store_result=True)
    def bad(payload: Any) -> Any:
        shop.db.session.add(Effect(name="lost"))
        return {"a": [object()]}

    task_id = shop.enqueue("bad", max_attempts=1)
    run_worker(shop)
    task = shop.wait_for(task_id)
    assert task.status == "DEAD"
    assert task.last_error is not None
    assert "result" in task.last_error
    assert shop.effects() == []


# --- events -----------------------------------------------------------------------------------------------------------------


def test_events_of_a_task_that_succeeds(shop: Shop, events: Events, run_worker: RunWorker) -> None:
    """One event per transition, in order, with the node and the attempt of the row."""
    shop.engine.task("a")(lambda payload: None)
    worker = run_worker(shop)
    task_id = shop.enqueue("a")
    wait_until(lambda: "task_succeeded" in events.names(task_id), what="the last event")
    assert events.names(task_id) == ["task_enqueued", "task_claimed", "task_started", "task_succeeded"]
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


def test_r02_a_receiver_that_raises_disturbs_nothing(shop: Shop, run_worker: RunWorker, caplog: pytest.LogCaptureFixture) -> None:
    """A broken receiver of every signal: tasks run all the same."""

    def broken(_: object, **fields: object) -> None:
        raise ValueError("I am broken")

    for signal in namespace.values():
        signal.connect(broken, sender=shop.engine)
    shop.engine.task("a")(lambda payload: None)
    run_worker(shop)
    shop.wait_for_all(shop.enqueue_many("a", "a", "a"))
    for signal in namespace.values():
        signal.disconnect(broken, sender=shop.engine)

"""What has broken other queues and has no place of its own in the suite: wrong clocks, loops that fail, workers that stop slowly."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import current_app

from flask_taskengine import FixedRate, Limits, RetryPolicy, Snooze, TaskContext, TaskStateError
from flask_taskengine.runtime.worker import Worker
from tests.support.hosts import own_threads
from tests.support.shop import Effect, Shop, statements_of
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until


@dataclass
class Point:
    """A payload."""

    x: int


SHORT_LEASE = {"TASKENGINE_LEASE": 1.5, "TASKENGINE_HEARTBEAT_INTERVAL": 0.3, "TASKENGINE_POLL_INTERVAL": 0.3}


def heard_since(shop: Shop, task_id: int) -> float:
    """Return the seconds between the claim of a task and the latest heartbeat of its node, by the database's clock."""
    tables = shop.dialect.tables
    statement = sa.select(tables.task.c.claimed_at, tables.node.c.heartbeat_at).where(
        tables.task.c.id == task_id, tables.node.c.id == tables.task.c.claimed_by
    )
    with shop.outside.connect() as connection:
        row = connection.execute(statement).one_or_none()
    return 0.0 if row is None else float((row[1] - row[0]).total_seconds())


# --- attempts and clocks --------------------------------------------------------------------------------------------------


def test_r06_a_row_beyond_its_attempts_harms_nobody(shop: Shop, run_worker: RunWorker) -> None:
    """However its attempts were used up, it is tried once more and ends; what is claimed beside it is not touched (faults 13)."""
    calls: list[int] = []

    @shop.engine.task("fails")
    def fails(payload: Any, context: TaskContext) -> None:
        calls.append(context.attempt)
        raise ValueError

    shop.engine.task("good")(lambda payload: None)
    beyond = shop.enqueue("fails", priority=1, max_attempts=2)
    shop.sql("UPDATE taskengine_task SET attempts = 7 WHERE id = :id", id=beyond)
    good = shop.enqueue_many(*["good"] * 3)
    run_worker(shop)
    shop.wait_for_all(good)
    assert shop.wait_for(beyond).status == "DEAD"
    assert calls == [8]


@pytest.mark.parametrize("wrong", [timedelta(hours=1), timedelta(hours=-1)], ids=["fast", "slow"])
def test_r12_a_wrong_clock_of_the_machine_changes_nothing(make_shop: MakeShop, run_worker: RunWorker, wrong: timedelta) -> None:
    """An hour fast or slow: what others run is theirs, what is due later comes at its time, and each runs once (faults 5)."""
    shop, other = make_shop(**SHORT_LEASE), make_shop(**SHORT_LEASE)
    inside, go = threading.Event(), threading.Event()
    calls: Counter[str] = Counter()

    @shop.engine.task("long")
    def long(payload: Any) -> None:
        calls["long"] += 1
        inside.set()
        assert go.wait(20)

    for one in (shop, other):
        one.engine.task("short")(lambda payload: calls.update([payload]))
    task_id = shop.enqueue("long")
    run_worker(shop, 2, beats=True)
    assert inside.wait(10)
    # Wrong for this process alone: SQLite, too, asks the system and not Python.
    with time_machine.travel(shop.task(task_id).created_at + wrong, tick=True):
        run_worker(other, 2, beats=True)
        later = shop.enqueue("short", "later")
        with shop.app.app_context():
            future = shop.engine.enqueue_after("short", "future", 600).id
            shop.db.session.commit()
        shop.wait_for(later)
        wait_until(lambda: heard_since(shop, task_id) > 3.5, 15, "both to beat for longer than two leases")
        assert (shop.task(task_id).status, shop.task(task_id).claims) == ("RUNNING", 1)
        go.set()
        assert shop.wait_for(task_id).status == "SUCCEEDED"
        assert shop.task(future).status == "PENDING"
    assert calls == {"long": 1, "later": 1}


# --- loops that fail ------------------------------------------------------------------------------------------------------


@contextmanager
def failing_statements(worker: Worker) -> Iterator[Counter[str]]:
    """Let every third statement of each of the worker's own threads fail, each time in another way; count them by thread."""
    seen: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    kinds: list[Callable[[], BaseException]] = [
        lambda: sa.exc.OperationalError("statement", {}, Exception("it is away")),
        lambda: sa.exc.InterfaceError("statement", {}, Exception("the line is cut")),
        lambda: sa.exc.DataError("statement", {}, Exception("what an odd value")),
        lambda: RuntimeError("a fault of ours"),
        lambda: SystemExit(3),
    ]

    def fail(*_: Any) -> None:
        name = threading.current_thread().name
        seen[name] += 1
        if seen[name] % 3 == 0:
            broken[name] += 1
            error = kinds[broken[name] % len(kinds)]()
            raise error

    sa.event.listen(worker.database.engine, "before_cursor_execute", fail)
    try:
        yield broken
    finally:
        sa.event.remove(worker.database.engine, "before_cursor_execute", fail)


def test_r10_every_loop_survives_whatever_its_statements_raise(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Errors of the database, of the engine and SystemExit, in each loop: none ends, and each task runs once (faults 2, 124)."""
    shop = make_shop(**{**SHORT_LEASE, "TASKENGINE_LEASE": 60})
    calls: Counter[int] = Counter()
    shop.engine.task("idle")(lambda payload: calls.update([payload]))
    worker = run_worker(shop, 2, beats=True)
    shop.wait_for(shop.enqueue("idle", 0))
    before = own_threads()
    ids = [shop.task(shop.tasks()[0].id).id]
    with failing_statements(worker) as broken:

        def enough() -> bool:
            if len(ids) < 30:
                ids.append(shop.enqueue("idle", len(ids)))
            wanted = {"taskengine-dispatcher", "taskengine-heartbeat", "taskengine-roll call", "taskengine-completer"}
            return wanted <= broken.keys() and sum(broken.values()) >= 12 and len(ids) == 30

        wait_until(enough, 25, lambda: f"each loop to fail: {broken}")
    shop.wait_for_all(ids, timeout=20)
    assert own_threads() == before
    assert calls == dict.fromkeys(range(30), 1)
    assert {task.attempts for task in shop.tasks()} == {1}


# --- a worker that stops slowly -------------------------------------------------------------------------------------------


def test_r13_a_task_is_cancelled_while_its_worker_stops(shop: Shop, run_worker: RunWorker) -> None:
    """A stop waits for running tasks, and a cancel still reaches them."""
    inside = threading.Event()

    @shop.engine.task("long")
    def long(payload: Any, context: TaskContext) -> None:
        inside.set()
        assert context.cancel_event.wait(20)

    task_id = shop.enqueue("long")
    worker = run_worker(shop, 1)
    assert inside.wait(10)
    stopping = threading.Thread(target=worker.stop, args=(15,))
    stopping.start()
    wait_until(lambda: worker.dispatcher._loop.stopping, what="the stop to begin")
    with shop.app.app_context():
        shop.engine.cancel(task_id)
        shop.db.session.commit()
    stopping.join(12)
    assert not stopping.is_alive()
    assert shop.task(task_id).status == "CANCELLED"


def test_r12_a_worker_that_stops_keeps_its_lease_to_the_end(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """It beats until its last handler has ended, however many leases that takes: nobody else begins the task."""
    shop, other = make_shop(**SHORT_LEASE), make_shop(**SHORT_LEASE)
    inside, go = threading.Event(), threading.Event()
    calls: list[int] = []

    def long(payload: Any) -> None:
        calls.append(1)
        inside.set()
        assert go.wait(20)

    for one in (shop, other):
        one.engine.task("long")(long)
    task_id = shop.enqueue("long")
    worker = run_worker(shop, 1, beats=True)
    assert inside.wait(10)
    run_worker(other, 1, beats=True)
    stopping = threading.Thread(target=worker.stop, args=(20,))
    stopping.start()
    wait_until(lambda: heard_since(shop, task_id) > 3.5, 15, "beats for longer than two leases")
    assert stopping.is_alive()
    go.set()
    stopping.join(10)
    assert shop.task(task_id).status == "SUCCEEDED"
    assert (calls, shop.task(task_id).claims) == ([1], 1)


def test_r12_heartbeats_need_no_connection_of_the_hosts_pool(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """A handler that holds the only one for longer than two leases keeps its task, and others are run beside it (faults 74)."""
    pool = {"SQLALCHEMY_ENGINE_OPTIONS": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 20}}
    shop, other = make_shop(**SHORT_LEASE, **pool), make_shop(**SHORT_LEASE)
    inside, go = threading.Event(), threading.Event()

    @shop.engine.task("holds")
    def holds(payload: Any) -> None:
        shop.db.session.execute(sa.text("SELECT 1"))
        inside.set()
        assert go.wait(20)

    shop.engine.task("idle")(lambda payload: None)
    other.engine.task("holds")(lambda payload: None)
    task_id = other.enqueue("holds")
    run_worker(shop, 2, beats=True)
    assert inside.wait(10)
    run_worker(other, 1, beats=True)
    wait_until(lambda: heard_since(other, task_id) > 3.5, 15, "beats for longer than two leases")
    other.wait_for(other.enqueue("idle"))
    go.set()
    assert other.wait_for(task_id).status == "SUCCEEDED"
    assert other.task(task_id).claims == 1


@pytest.mark.parametrize("beyond", [2**31, 2**53 + 1])
def test_r04_large_ids_live_through_everything(shop: Shop, run_worker: RunWorker, beyond: int) -> None:
    """Success with and without the session, retry, cancel, an unreadable payload and a release at the stop (faults 91, P40)."""
    inside, go = threading.Event(), threading.Event()

    @shop.engine.task("write")
    def write(payload: Any, context: TaskContext) -> None:
        shop.db.session.add(Effect(name=str(context.task_id)))

    @shop.engine.task("fails", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def fails(payload: Any) -> None:
        raise ValueError

    @shop.engine.task("long")
    def long(payload: Any, context: TaskContext) -> None:
        inside.set()
        wait_until(lambda: context.cancelled or go.is_set(), 20)

    shop.engine.task("idle")(lambda payload: None)
    shop.engine.task("typed", schema=Point)(lambda payload: None)
    names = ["write", "idle", "fails", "typed", "long"]
    for n, name in enumerate(names):
        shop.sql("INSERT INTO taskengine_task (id, type) VALUES (:id, :type)", id=beyond + n, type=name)
    worker = run_worker(shop, 4)
    ended = [shop.wait_for(beyond + n).status for n in range(4)]
    assert ended == ["SUCCEEDED", "SUCCEEDED", "DEAD", "FAILED"]
    assert shop.effects() == [str(beyond)]
    assert inside.wait(10)
    with shop.app.app_context():
        shop.engine.cancel(beyond + 4)
        shop.engine.retry(beyond + 2)
        shop.engine.delete(beyond + 1)
        shop.db.session.commit()
    assert shop.wait_for(beyond + 4).status == "CANCELLED"
    inside.clear()
    shop.sql("INSERT INTO taskengine_task (id, type) VALUES (:id, 'long')", id=beyond + 9)
    assert inside.wait(10)
    worker.stop(0)
    go.set()
    assert (shop.task(beyond + 9).status, shop.task(beyond + 9).attempts) == ("PENDING", 0)


# --- what waiting costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limited", [False, True], ids=["nothing due", "at its limit"])
def test_r11_an_idle_worker_asks_little(make_shop: MakeShop, run_worker: RunWorker, limited: bool) -> None:
    """With the default intervals fewer than five statements a second, also while due tasks wait for a place (faults 73)."""
    shop = make_shop()
    inside, go = threading.Event(), threading.Event()

    @shop.engine.task("one", limits=Limits(cluster_wide=1))
    def one(payload: Any) -> None:
        inside.set()
        assert go.wait(20)

    worker = run_worker(shop, 4)
    wait_until(lambda: worker.notifier.settled, what="the notifier")
    if limited:
        shop.enqueue_many(*["one"] * 5)
        assert inside.wait(10)
    with statements_of(worker.database.engine) as seen:
        settled = time.monotonic() + 1
        wait_until(lambda: time.monotonic() > settled)
        seen.clear()
        end = time.monotonic() + 5
        wait_until(lambda: time.monotonic() > end)
        # SQLite tells by a look at shared memory whether anything has changed; that reads no table.
        asked = [statement for statement in seen if statement != "PRAGMA data_version"]
    go.set()
    assert len(asked) < 25, asked


@pytest.mark.timing
def test_r17_the_end_of_a_lone_task_is_recorded_within_50_ms(shop: Shop, run_worker: RunWorker) -> None:
    """Grouping completions does not make the only one wait for others (faults 23)."""
    shop.engine.task("idle")(lambda payload: None)
    run_worker(shop)
    ids = []
    for _ in range(5):
        ids.append(shop.enqueue("idle"))
        shop.wait_for(ids[-1])
    took = sorted(task.finished_at - task.claimed_at for task in shop.tasks() if task.finished_at and task.claimed_at)
    assert took[2] < timedelta(milliseconds=50)


# --- what is left over, and what waits ------------------------------------------------------------------------------------


def test_r15_a_place_of_a_dead_node_becomes_free(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """A left-over of a node that is gone counts until the reaper has it, which no limit holds up; then both run (faults 98, P65)."""
    shop = make_shop(**SHORT_LEASE, TASKENGINE_DEFAULT_RETRY={"base_backoff": 0.1})
    shop.engine.task("one", limits=Limits(per_node=1, cluster_wide=1))(lambda payload: None)
    left, due = shop.enqueue_many("one", "one")
    claim = "status = 'RUNNING', attempts = 1, claims = 1, claimed_by = 'gone', claimed_at = created_at"
    shop.sql(f"UPDATE taskengine_task SET {claim} WHERE id = :id", id=left)
    run_worker(shop, 4, beats=True)
    assert [shop.wait_for(task_id).status for task_id in (left, due)] == ["SUCCEEDED", "SUCCEEDED"]
    assert (shop.task(left).attempts, shop.task(due).attempts) == (2, 1)


def test_r11_a_wake_up_during_a_look_is_not_lost(make_shop: MakeShop, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a type is at its limit: what is committed when the look is over starts at once, not at the next poll (faults 95, P58)."""
    shop = make_shop(TASKENGINE_POLL_INTERVAL=60)
    inside, go = threading.Event(), threading.Event()

    @shop.engine.task("one", limits=Limits(cluster_wide=1))
    def one(payload: Any) -> None:
        inside.set()
        assert go.wait(20)

    shop.engine.task("free")(lambda payload: None)
    worker = run_worker(shop, 4)
    wait_until(lambda: worker.notifier.settled, what="the notifier")
    free: list[int] = []
    looks: list[bool] = []
    look = worker.database.dialect.seconds_to_due

    def look_and_enqueue(*arguments: Any) -> dict[str, float]:
        found = look(*arguments)
        looks.append(found.get("one", 1) <= 0)
        # By the second one the dispatcher knows that the type is full.
        if sum(looks) == 2 and not free:
            wake = worker.dispatcher.wake
            # One wake-up and no other, while the look has not ended.
            monkeypatch.setattr(worker.dispatcher, "wake", lambda: None)
            free.append(shop.enqueue("free"))
            wake()
        return found

    monkeypatch.setattr(worker.database.dialect, "seconds_to_due", look_and_enqueue)
    shop.enqueue_many("one", "one")
    assert inside.wait(10)
    wait_until(lambda: free, what="the look")
    assert shop.wait_for(free[0], timeout=3).status == "SUCCEEDED"
    go.set()


def test_r15_limits_hold_however_tasks_end(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Failures, snoozes, retries by hand, cancels and a worker that is stopped at once: no type is above its limit (faults 98)."""
    limits = {"both": Limits(per_node=2, cluster_wide=3), "cluster": Limits(cluster_wide=2), "node": Limits(per_node=1)}
    inside: Counter[tuple[str, str]] = Counter()
    peak: Counter[tuple[str, str]] = Counter()
    lock = threading.Lock()
    choose = random.Random(98)
    never = threading.Event()

    def handle(payload: int, context: TaskContext) -> None:
        node = context.type, current_app.name
        with lock:
            inside[node] += 1
            peak.update({node: max(0, inside[node] - peak[node])})
        never.wait(0.01)
        with lock:
            inside[node] -= 1
        if payload % 5 == 0:
            raise ValueError
        if payload % 5 == 1 and context.token == 1:
            raise Snooze("10ms")

    shops = [make_shop(TASKENGINE_DEFAULT_RETRY={"max_attempts": 3, "base_backoff": 0.01, "max_backoff": 0.01}) for _ in range(2)]
    shops[1].app.name = "second"
    for shop in shops:
        for name, limit in limits.items():
            shop.engine.task(name, limits=limit)(handle)
    with shop.app.app_context():
        made = shop.engine.enqueue_many([{"type": name, "payload": n} for n in range(25) for name in limits])
        shop.db.session.commit()
    workers = [run_worker(each, 6) for each in shops]
    most: Counter[str] = Counter()
    verbs: list[Callable[[int], Any]] = [shop.engine.cancel, shop.engine.retry]

    def meddle() -> None:
        task_id = choose.choice(made).id
        with shop.app.app_context():
            try:
                verbs[choose.randrange(2)](task_id)
                shop.db.session.commit()
            except TaskStateError:
                shop.db.session.rollback()

    def ended() -> bool:
        nonlocal most
        most |= Counter(
            dict(tuple(row) for row in shop.sql("SELECT type, count(*) FROM taskengine_task WHERE status = 'RUNNING' GROUP BY type"))
        )
        left = shop.sql("SELECT count(*) FROM taskengine_task WHERE finished_at IS NULL")[0][0]
        if left > 20:
            meddle()
        elif len(workers) == 2:
            workers[0].stop(0)
            workers.append(run_worker(shops[0], 6))
        return bool(left == 0)

    wait_until(ended, 25, lambda: f"all to end: {[task for task in shop.tasks() if task.finished_at is None]}")
    assert (most["both"] <= 3, most["cluster"] <= 2) == (True, True), most
    # A place on a node is free once the handler has ended, so it is handlers that count there.
    assert peak["both", "second"] <= 2
    assert peak["node", "second"] == 1


def test_r19_an_occurrence_is_there_while_all_slots_are_busy(shop: Shop, run_worker: RunWorker) -> None:
    """A schedule's times are not missed for want of a slot: the occurrence waits as a due task (faults P11)."""
    inside, go = threading.Event(), threading.Event()
    runs: list[int] = []

    @shop.engine.task("long")
    def long(payload: Any) -> None:
        inside.set()
        assert go.wait(20)

    @shop.engine.schedule("often", FixedRate("300ms"))
    def often(context: TaskContext) -> None:
        runs.append(1)

    shop.enqueue("long", priority=9)
    run_worker(shop, 1)
    assert inside.wait(10)
    wait_until(lambda: [task.status for task in shop.tasks() if task.type == "often"] == ["PENDING"], what="the occurrence")
    assert runs == []
    go.set()
    wait_until(lambda: runs, what="its run")


def test_r16_a_duplicate_is_no_error_of_the_server(shop: Shop) -> None:
    """A key that exists is found without a violated constraint, which the server would log (faults P7)."""
    errors: list[Any] = []
    note = errors.append
    sa.event.listen(sa.Engine, "handle_error", note)
    try:
        with shop.app.app_context():
            first = shop.engine.enqueue("a", idempotency_key="same")
            shop.db.session.commit()
            assert shop.engine.enqueue("a", idempotency_key="same").id == first.id
            again = shop.engine.enqueue_many([{"type": "a", "idempotency_key": key} for key in ("same", "new", "new")])
            shop.db.session.commit()
    finally:
        sa.event.remove(sa.Engine, "handle_error", note)
    assert [one.created for one in again] == [False, True, False]
    assert errors == []


# --- give back and go on --------------------------------------------------------------------------------------------------


def test_r04_a_long_task_holds_no_short_ones(shop: Shop, run_worker: RunWorker) -> None:
    """Nothing waits inside a worker behind what runs: with its slot taken, the rest is left to whoever has one."""
    inside, go = threading.Event(), threading.Event()

    @shop.engine.task("long", retry=RetryPolicy(max_attempts=1))
    def long(payload: Any) -> None:
        shop.db.session.add(Effect(name="long"))
        inside.set()
        assert go.wait(20)

    shop.engine.task("short")(lambda payload: None)
    long_id = shop.enqueue("long", priority=1)
    first = run_worker(shop, 1)
    assert inside.wait(10)
    ids = shop.enqueue_many(*["short"] * 10)
    assert {task.claimed_by for task in shop.tasks() if task.type == "short"} == {None}
    run_worker(shop, 1)
    shop.wait_for_all(ids)
    assert first.membership.id not in {task.claimed_by for task in shop.tasks() if task.type == "short"}
    go.set()
    assert shop.wait_for(long_id).status == "SUCCEEDED"

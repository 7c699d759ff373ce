"""R6, R21: an attempt that fails is tried again after its backoff, until the task is DEAD; what is kept of it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine

from flask_taskengine import Reject, Retry, RetryPolicy, Snooze, TaskContext
from tests.support.shop import Effect, Events, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

AT_ONCE = RetryPolicy(max_attempts=3, base_backoff=0)


class OddError(Exception):
    """An error whose text can not be stored as it is."""


class MuteError(Exception):
    """An error that can not even be asked what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")


# --- DEAD -------------------------------------------------------------------------------------------------------------------


def test_r06_dead_after_max_attempts(shop: Shop, events: Events, run_worker: RunWorker) -> None:
    """Exactly ``max_attempts`` calls; what the failed attempts wrote is rolled back; each is kept with its error."""
    calls: list[int] = []

    @shop.engine.task("boom", retry=AT_ONCE)
    def boom(payload: Any, context: TaskContext) -> None:
        calls.append(context.attempt)
        shop.db.session.add(Effect(name=f"attempt {context.attempt}"))
        shop.db.session.flush()
        raise ValueError(f"number {context.attempt}")

    run_worker(shop)
    task_id = shop.enqueue("boom")
    task = shop.wait_for(task_id)
    assert calls == [1, 2, 3]
    assert shop.effects() == []
    assert (task.status, task.attempts, task.claims, task.last_error) == ("DEAD", 3, 3, "ValueError: number 3")
    assert task.finished_at is not None
    attempts = shop.attempts(task_id)
    assert [(one["attempt"], one["claims"], one["error_class"], one["message"]) for one in attempts] == [
        (n, n, "ValueError", f"number {n}") for n in (1, 2, 3)
    ]
    for one in attempts:
        assert one["node"] == task.claimed_by
        assert "in boom" in one["traceback"]
        assert one["started_at"] <= one["finished_at"]
    wait_until(lambda: "task_dead" in events.names(task_id), what="task_dead")
    for attempt, end in ((1, "task_retried"), (2, "task_retried"), (3, "task_dead")):
        # By attempt: the end of one is announced after its commit, by when the next may have been claimed.
        assert [name for name, fields in events.seen if fields.get("attempt") == attempt] == ["task_claimed", "task_started", end]
    assert [fields["failure"].message for fields in events.of("task_retried")] == ["number 1", "number 2"]
    assert events.of("task_dead")[0]["attempt"] == 3


def test_r06_the_rows_own_max_attempts_wins(shop: Shop, run_worker: RunWorker) -> None:
    """Over the processor's, to either side."""
    calls: list[str] = []

    @shop.engine.task("boom", retry=AT_ONCE)
    def boom(payload: str) -> None:
        calls.append(payload)
        raise ValueError

    ids = [shop.enqueue("boom", "one", max_attempts=1), shop.enqueue("boom", "five", max_attempts=5)]
    run_worker(shop)
    assert [shop.wait_for(task_id).attempts for task_id in ids] == [1, 5]
    assert sorted(calls) == ["five"] * 5 + ["one"]


def test_r06_a_dead_task_runs_again_when_it_is_retried(shop: Shop, run_worker: RunWorker) -> None:
    """At least once more, although its attempts were used up; with ``reset_attempts`` as often as at first."""
    fails = {"value": True}

    @shop.engine.task("boom", retry=AT_ONCE)
    def boom(payload: Any) -> None:
        if fails["value"]:
            raise ValueError

    run_worker(shop)
    task_id = shop.enqueue("boom")
    for reset, attempts in ((False, 4), (True, 3)):
        dead = shop.wait_for(task_id)
        assert dead.status == "DEAD"
        claims = dead.claims
        with shop.app.app_context():
            shop.engine.retry(task_id, reset_attempts=reset)
            shop.db.session.commit()
        wait_until(lambda: shop.task(task_id).status == "DEAD" and shop.task(task_id).claims > claims, what="DEAD again")  # noqa: B023
        assert shop.task(task_id).attempts == attempts
    fails["value"] = False
    with shop.app.app_context():
        shop.engine.retry(task_id)
        shop.db.session.commit()
    assert shop.wait_for(task_id, "SUCCEEDED").finished_at is not None


# --- backoff ----------------------------------------------------------------------------------------------------------------


def test_r06_backoff_by_the_databases_clock(shop: Shop, run_worker: RunWorker) -> None:
    """After each failure the task waits base, base x multiplier, ... counted from then, though this machine's clock is wrong."""
    policy = RetryPolicy(max_attempts=9, base_backoff=100, multiplier=3, max_backoff=500, jitter=0)

    @shop.engine.task("boom", retry=policy)
    def boom(payload: Any) -> None:
        raise ValueError

    now = "statement_timestamp()" if shop.is_postgresql else "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    with time_machine.travel(datetime.now(UTC) - timedelta(days=400)):
        run_worker(shop)
        task_id = shop.enqueue("boom")
        for claims, backoff in enumerate((100, 300, 500, 500), 1):
            wait_until(lambda: (task := shop.task(task_id)).status == "PENDING" and task.claims == claims, what="a retry")  # noqa: B023
            assert shop.seconds_until_due(task_id) == pytest.approx(backoff, abs=5)
            shop.sql(f"UPDATE taskengine_task SET available_at = {now}")


def test_r06_a_retried_task_starts_when_its_backoff_is_over(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """The dispatcher sleeps until then, whatever its poll interval is."""
    shop = make_shop(TASKENGINE_POLL_INTERVAL=60)

    @shop.engine.task("boom", retry=RetryPolicy(max_attempts=3, base_backoff="200ms", multiplier=1, jitter=0))
    def boom(payload: Any) -> None:
        raise ValueError

    run_worker(shop)
    task_id = shop.enqueue("boom")
    assert shop.wait_for(task_id, timeout=20).attempts == 3
    for earlier, later in itertools.pairwise(shop.attempts(task_id)):
        assert later["started_at"] - earlier["started_at"] >= timedelta(milliseconds=200)


def test_r06_jitter_spreads_what_failed_together(shop: Shop, run_worker: RunWorker) -> None:
    """Fifty tasks that fail at once do not come back at once."""

    @shop.engine.task("boom", retry=RetryPolicy(base_backoff=1000, max_backoff=5000, jitter=0.2))
    def boom(payload: Any) -> None:
        raise ConnectionError

    run_worker(shop, concurrency=10)
    shop.enqueue_many(*["boom"] * 50)
    wait_until(lambda: all(task.attempts == 1 and task.status == "PENDING" for task in shop.tasks()), what="50 failures")
    waits = [shop.seconds_until_due(task.id) for task in shop.tasks()]
    assert all(790 <= wait <= 1200 for wait in waits)
    assert max(waits) - min(waits) > 100


def test_r21_property_over_processor_over_default(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Key by key: each place says what it wants to be different, and the rest comes from the next."""
    shop = make_shop(
        TASKENGINE_DEFAULT_RETRY={"max_attempts": 2, "base_backoff": 100, "jitter": 0},
        TASKENGINE_RETRY={"property": {"base_backoff": 300}},
    )

    def boom(payload: Any) -> None:
        raise ValueError

    shop.engine.task("default")(boom)
    shop.engine.task("processor", retry=RetryPolicy(base_backoff=200))(boom)
    shop.engine.task("property", retry=RetryPolicy(base_backoff=200, max_attempts=4))(boom)
    run_worker(shop)
    ids = shop.enqueue_many("default", "processor", "property")
    wait_until(lambda: all(task.attempts == 1 and task.status == "PENDING" for task in shop.tasks()), what="three failures")
    assert [shop.seconds_until_due(task_id) for task_id in ids] == [pytest.approx(wait, abs=5) for wait in (100, 200, 300)]
    past = "2020-01-01 00:00:00+00" if shop.is_postgresql else "2020-01-01 00:00:00.000"
    shop.sql(f"UPDATE taskengine_task SET available_at = '{past}'")
    wait_until(lambda: all(task.attempts == 2 for task in shop.tasks()), what="three more failures")
    assert [shop.wait_for(task_id, "DEAD", "PENDING").status for task_id in ids] == ["DEAD", "DEAD", "PENDING"]


# --- how a handler ends its attempt -------------------------------------------------------------------------------------------


def test_r06_reject_is_failed_at_once(shop: Shop, events: Events, run_worker: RunWorker) -> None:
    """No retry, the reason is kept, what it wrote is rolled back."""

    @shop.engine.task("no")
    def refuse(payload: Any) -> None:
        shop.db.session.add(Effect(name="lost"))
        shop.db.session.flush()
        raise Reject("there is no such customer")

    run_worker(shop)
    task = shop.wait_for(shop.enqueue("no"))
    assert (task.status, task.attempts, task.last_error) == ("FAILED", 1, "Reject: there is no such customer")
    assert shop.effects() == []
    assert len(shop.attempts(task.id)) == 1
    wait_until(lambda: "task_failed" in events.names(task.id), what="task_failed")


def test_r06_retry_has_its_own_delay(shop: Shop, events: Events, run_worker: RunWorker) -> None:
    """``Retry(after=...)`` counts as a failure and waits as long as it says, instead of the policy's backoff."""

    @shop.engine.task("later", retry=RetryPolicy(max_attempts=2, base_backoff=1))
    def later(payload: Any) -> None:
        raise Retry(after="1h", reason="the other side is closed")

    run_worker(shop)
    task_id = shop.enqueue("later")
    wait_until(lambda: shop.task(task_id).last_error, what="the failure")
    task = shop.task(task_id)
    assert (task.status, task.attempts, task.last_error) == ("PENDING", 1, "Retry: the other side is closed")
    assert shop.seconds_until_due(task_id) == pytest.approx(3600, abs=5)
    wait_until(lambda: events.of("task_retried"), what="task_retried")
    assert events.of("task_retried")[0]["delay"] == 3600
    shop.sql("UPDATE taskengine_task SET available_at = created_at")
    assert shop.wait_for(task_id).status == "DEAD"


def test_r06_snooze_does_not_count(shop: Shop, events: Events, run_worker: RunWorker) -> None:
    """Not yet: the attempt is given back, nothing is kept of it, what it wrote is rolled back; the token rises all the same."""
    calls: list[tuple[int, int]] = []

    @shop.engine.task("wait", retry=RetryPolicy(max_attempts=1))
    def wait(payload: Any, context: TaskContext) -> None:
        calls.append((context.attempt, context.token))
        shop.db.session.add(Effect(name=f"call {len(calls)}"))
        shop.db.session.flush()
        if len(calls) < 4:
            raise Snooze(after="20ms")

    run_worker(shop)
    task = shop.wait_for(shop.enqueue("wait"))
    assert calls == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert (task.status, task.attempts, task.claims, task.last_error) == ("SUCCEEDED", 1, 4, None)
    assert shop.effects() == ["call 4"]
    assert shop.attempts(task.id) == []
    wait_until(lambda: "task_succeeded" in events.names(), what="the end")
    assert [fields["reason"] for fields in events.of("task_requeued")] == ["snoozed"] * 3


# --- errors of every kind -----------------------------------------------------------------------------------------------------


def test_r06_odd_errors_are_kept(shop: Shop, run_worker: RunWorker) -> None:
    """NUL, half surrogates, ten megabytes, an error without a text: each attempt is recorded, in text that every database stores."""
    huge = "x" * 10_000_000
    errors: dict[str, Callable[[], BaseException]] = {
        "nul": lambda: OddError("a\0b"),
        "surrogate": lambda: OddError("a\ud800b"),
        "huge": lambda: OddError(huge),
        "empty": OddError,
        "mute": MuteError,
        "bytes": lambda: OddError(b"\xff\x00"),
        "percent": lambda: OddError("100% %s %(a)s {0} :x"),
    }

    @shop.engine.task("odd", retry=RetryPolicy(max_attempts=1))
    def odd(payload: str) -> None:
        shop.db.session.execute(sa.text("SELECT 1"))
        error = errors[payload]()
        raise error

    run_worker(shop)
    ids = {name: shop.enqueue("odd", name) for name in errors}
    tasks = {name: shop.wait_for(task_id) for name, task_id in ids.items()}
    assert {task.status for task in tasks.values()} == {"DEAD"}
    for name, task in tasks.items():
        (attempt,) = shop.attempts(task.id)
        assert attempt["error_class"].endswith("MuteError" if name == "mute" else "OddError")
        assert attempt["traceback"]
        assert len(attempt["message"]) + len(task.last_error or "") < 10_000
    assert "\\x00" in (tasks["nul"].last_error or "")
    assert "\\ud800" in (tasks["surrogate"].last_error or "")
    assert "100% %s %(a)s {0} :x" in (tasks["percent"].last_error or "")


@pytest.mark.parametrize("uses_session", [True, False])
def test_r06_no_exception_costs_a_slot(shop: Shop, run_worker: RunWorker, uses_session: bool) -> None:
    """SystemExit, KeyboardInterrupt, GeneratorExit and others that are no Exception end an attempt, not a thread of the pool."""
    kinds = [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException, MemoryError, RecursionError, StopIteration]

    @shop.engine.task("exit", retry=RetryPolicy(max_attempts=1))
    def leave(payload: int) -> None:
        if uses_session:
            shop.db.session.add(Effect(name=f"lost {payload}"))
            shop.db.session.flush()
        raise kinds[payload % len(kinds)]

    release, inside = threading.Event(), []

    @shop.engine.task("full")
    def fill(payload: Any) -> None:
        inside.append(payload)
        release.wait(10)

    worker = run_worker(shop, concurrency=3)
    with shop.app.app_context():
        made = shop.engine.enqueue_many({"type": "exit", "payload": n} for n in range(2 * len(kinds)))
        shop.db.session.commit()
    tasks = [shop.wait_for(one.id) for one in made]
    assert {task.status for task in tasks} == {"DEAD"}
    assert [task.last_error for task in tasks[: len(kinds)]] == [kind.__name__ for kind in kinds]
    assert shop.effects() == []
    full = shop.enqueue_many("full", "full", "full")
    wait_until(lambda: len(inside) == 3, what="all three slots to be used")
    release.set()
    shop.wait_for_all(full)
    wait_until(lambda: worker.slots.in_use == 0, what="the slots to be free")


def test_r06_an_error_of_the_hosts_own_teardown(shop: Shop, run_worker: RunWorker) -> None:
    """A teardown function that raises is not silent: what had to be recorded still is, and the slot is free again."""
    armed = {"value": True}

    @shop.app.teardown_appcontext
    def broken(error: BaseException | None) -> None:
        if armed["value"] and threading.current_thread().name.startswith("taskengine-slot"):
            raise OSError("the host's teardown")

    shop.engine.task("plain", retry=RetryPolicy(max_attempts=1))(lambda payload: None)

    @shop.engine.task("session")
    def in_session(payload: Any) -> None:
        shop.db.session.add(Effect(name="kept"))

    worker = run_worker(shop)
    plain, session = shop.enqueue("plain"), shop.enqueue("session")
    assert shop.wait_for(plain).last_error == "OSError: the host's teardown"
    assert shop.wait_for(session).status == "SUCCEEDED"
    assert shop.effects() == ["kept"]
    wait_until(lambda: worker.slots.in_use == 0, what="the slots to be free")
    armed["value"] = False
    assert shop.wait_for(shop.enqueue("plain")).status == "SUCCEEDED"

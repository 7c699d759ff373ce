"""R6: failed attempts are tried again with a backoff, and exhausted tasks are DEAD."""

from __future__ import annotations

import random
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import Reject, Retry, RetryPolicy, Snooze, TaskStatus, current_task
from flask_taskengine.domain.outcome import Snoozed, decide
from flask_taskengine.store import nodes, tasks
from flask_taskengine.store.clock import db_now
from tests.support.shop import Effect, Events, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

AT_ONCE = RetryPolicy(max_attempts=3, base_backoff=0)


class OddError(Exception):
    """An error of the host's own."""


ODD = f"{OddError.__module__}.OddError"


def now(shop: Shop) -> Any:
    """Read the database's clock."""
    with shop.outside.connect() as connection:
        return connection.execute(sa.select(db_now())).scalar_one()


def is_back_after(shop: Shop, task_id: int, attempts: int) -> bool:
    """Say whether a task waits again after so many attempts."""
    task = shop.task(task_id)
    return (task.attempts, task.status) == (attempts, "PENDING")


def has_failed(shop: Shop, task_id: int) -> bool:
    """Say whether an attempt of the task has failed."""
    return shop.task(task_id).last_error is not None


@pytest.mark.parametrize("most", [1, 3])
def test_r06_dead_after_exactly_max_attempts(shop: Shop, run_worker: RunWorker, events: Events, most: int) -> None:
    """A task that always fails is tried ``max_attempts`` times, each time rolled back, and then never again."""
    calls: list[tuple[int, int | None]] = []

    @shop.engine.task("fails", retry=AT_ONCE)
    def fails(payload: Any) -> None:
        calls.append((current_task.attempt, current_task.max_attempts))
        shop.db.session.add(Effect(name=f"effect {len(calls)}"))
        shop.db.session.flush()
        raise OddError(f"call {len(calls)}")

    task_id = shop.enqueue("fails", max_attempts=None if most == 3 else most)
    worker = run_worker(shop)
    task = shop.wait_for(task_id)
    assert (task.status, task.attempts, task.claims) == ("DEAD", most, most)
    assert task.last_error == f"{ODD}: call {most}"
    assert task.finished_at is not None
    wait_until(lambda: "task_dead" in events.names(task_id))
    worker.stop()
    assert calls == [(n + 1, most) for n in range(most)]
    assert shop.effects() == []
    for attempt in range(1, most + 1):
        # By attempt: the end of one is announced after its commit, by when the next may have been claimed.
        names = [name for name, fields in events.seen if fields.get("attempt") == attempt]
        assert names == ["task_claimed", "task_started", "task_dead" if attempt == most else "task_retried"]


def test_r06_every_failed_attempt_is_kept(shop: Shop, run_worker: RunWorker) -> None:
    """Class, message, traceback, node and times of each are recorded, and the traceback shows the handler's line."""

    @shop.engine.task("fails", retry=AT_ONCE)
    def fails(payload: Any) -> None:
        try:
            raise KeyError("the cause")
        except KeyError as error:
            raise OddError(f"attempt {current_task.attempt}") from error

    before = now(shop)
    task_id = shop.enqueue("fails")
    worker = run_worker(shop, label="node-7")
    task = shop.wait_for(task_id)
    attempts = shop.attempts(task_id)
    assert [(a["attempt"], a["claims"], a["error_class"], a["message"]) for a in attempts] == [
        (n, n, ODD, f"attempt {n}") for n in (1, 2, 3)
    ]
    for attempt in attempts:
        assert before <= attempt["started_at"] <= attempt["finished_at"] <= now(shop)
        assert attempt["node"] == task.claimed_by == worker.membership.id
        assert attempt["node"].startswith("node-7:")
        assert "the cause" in attempt["traceback"]
        assert 'raise OddError(f"attempt {current_task.attempt}") from error' in attempt["traceback"]


def test_r06_backoff_counts_by_the_databases_clock(shop: Shop, run_worker: RunWorker) -> None:
    """The next attempt is due after the policy's backoff, counted from the failure on."""

    @shop.engine.task("fails", retry=RetryPolicy(max_attempts=5, base_backoff=100, multiplier=3, max_backoff=600, jitter=0))
    def fails(payload: Any) -> None:
        raise OddError

    task_id = shop.enqueue("fails")
    worker = run_worker(shop)
    table = shop.dialect.tables.task
    for attempt, backoff in enumerate([100, 300, 600, 600], 1):
        wait_until(partial(is_back_after, shop, task_id, attempt))
        task = shop.task(task_id)
        # Both were written by one statement, of whose moment the database keeps at least milliseconds.
        assert abs(task.available_at - task.updated_at - timedelta(seconds=backoff)) <= timedelta(milliseconds=2)
        assert backoff - 30 < shop.seconds_until_due(task_id) <= backoff
        with shop.outside.begin() as connection:
            connection.execute(sa.update(table).values(available_at=db_now()))
        worker.wake()
    assert shop.wait_for(task_id).status is TaskStatus.DEAD


def test_r06_reject_fails_at_once(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """``Reject`` ends the task as FAILED with the first attempt, and its writes are rolled back."""

    @shop.engine.task("rejects", retry=AT_ONCE)
    def rejects(payload: Any) -> None:
        shop.db.session.add(Effect(name="never"))
        raise Reject("no such address")

    run_worker(shop)
    task = shop.wait_for(shop.enqueue("rejects"))
    assert (task.status, task.attempts, task.last_error) == ("FAILED", 1, "Reject: no such address")
    assert [a["message"] for a in shop.attempts(task.id)] == ["no such address"]
    assert shop.effects() == []
    wait_until(lambda: events.names(task.id)[-1] == "task_failed")


def test_r06_retry_sets_its_own_delay_and_counts(shop: Shop, run_worker: RunWorker) -> None:
    """``Retry(after)`` wins over the policy's backoff; the attempt counts, and the last one is DEAD."""

    @shop.engine.task("retries", retry=RetryPolicy(max_attempts=2, base_backoff=0))
    def retries(payload: Any) -> None:
        shop.db.session.add(Effect(name="never"))
        raise Retry(payload["after"], reason="the provider is down")

    later, soon = shop.enqueue("retries", {"after": "50m"}), shop.enqueue("retries", {"after": 0})
    run_worker(shop)
    dead = shop.wait_for(soon)
    assert (dead.status, dead.attempts, dead.last_error) == ("DEAD", 2, "Retry: the provider is down")
    task = shop.wait_for(later, "PENDING")
    wait_until(lambda: shop.task(later).attempts == 1)
    task = shop.wait_for(later, "PENDING")
    assert 2900 < shop.seconds_until_due(later) <= 3000
    assert task.last_error == "Retry: the provider is down"
    assert shop.effects() == []


def test_r06_snooze_does_not_count(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """A snoozed attempt leaves no failure, no effect and no count; the fencing token still rises."""
    tokens: list[int] = []

    @shop.engine.task("snoozes", retry=RetryPolicy(max_attempts=1))
    def snoozes(payload: Any) -> None:
        tokens.append(current_task.token)
        shop.db.session.add(Effect(name="once"))
        if len(tokens) < 4:
            shop.db.session.flush()
            raise Snooze(0)

    task_id = shop.enqueue("snoozes")
    run_worker(shop)
    task = shop.wait_for(task_id)
    assert (task.status, task.attempts, task.claims, task.last_error) == ("SUCCEEDED", 1, 4, None)
    assert tokens == [1, 2, 3, 4]
    assert shop.attempts(task_id) == []
    assert shop.effects() == ["once"]
    assert [fields["reason"] for fields in events.of("task_requeued")] == ["snoozed"] * 3


def test_r06_a_snooze_waits(shop: Shop, run_worker: RunWorker) -> None:
    """A snoozed task is due after the delay that was asked for."""

    @shop.engine.task("snoozes")
    def snoozes(payload: Any) -> None:
        raise Snooze(timedelta(hours=1))

    task_id = shop.enqueue("snoozes")
    run_worker(shop)
    wait_until(lambda: (shop.task(task_id).claims, shop.task(task_id).status) == (1, "PENDING"))
    assert shop.task(task_id).attempts == 0
    assert 3500 < shop.seconds_until_due(task_id) <= 3600


def test_r06_a_thousand_snoozes_overflow_nothing(shop: Shop) -> None:
    """Only the fencing token grows with the claims, and that has 64 bits (faults 89)."""
    task_id = shop.enqueue("snoozes", max_attempts=1)
    shop.sql("UPDATE taskengine_task SET claims = 9000000000000000000")
    tables = shop.dialect.tables
    row = {"id": "n", "label": "n", "host": "h", "pid": 1, "version": "1", "concurrency": 1, "types": [], "limits": {}}
    outcome = decide(Snoozed(0), attempts=1, max_attempts=1, policy=RetryPolicy(), cancel_requested=False, rng=random.Random(1))
    with shop.outside.begin() as connection:
        nodes.register(connection, tables, row)
    with shop.outside.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(1000):
            (claimed,) = shop.dialect.claim(connection, "n", {"snoozes": 1}, 1)
            assert claimed.attempts == 1
            assert tasks.finish(connection, tables, task_id, claimed.claims, outcome)
    task = shop.task(task_id)
    assert (task.status, task.attempts, task.claims) == ("PENDING", 0, 9000000000000001000)


def test_r06_an_exhausted_task_that_is_retried_runs_once_more(shop: Shop, run_worker: RunWorker) -> None:
    """A retry by hand gives a DEAD task at least one more attempt, and a FAILED one as well."""

    @shop.engine.task("fails", retry=AT_ONCE)
    def fails(payload: Any) -> None:
        raise OddError

    @shop.engine.task("rejects", retry=AT_ONCE)
    def rejects(payload: Any) -> None:
        raise Reject("no")

    ids = [shop.enqueue("fails", max_attempts=2), shop.enqueue("rejects", max_attempts=1)]
    run_worker(shop)
    assert [shop.wait_for(task_id).status for task_id in ids] == ["DEAD", "FAILED"]
    with shop.app.app_context():
        for task_id in ids:
            shop.engine.retry(task_id)
        shop.db.session.commit()
    wait_until(lambda: [(shop.task(i).attempts, shop.task(i).status) for i in ids] == [(3, "DEAD"), (2, "FAILED")])


# --- R21: which policy holds ---------------------------------------------------------------------------------------------


def test_r21_setting_over_processor_over_default_key_by_key(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Each key of the policy comes from the most particular place that says something, down to the row."""
    shop = make_shop(
        TASKENGINE_DEFAULT_RETRY={"max_attempts": 4, "base_backoff": 700, "max_backoff": 5000, "jitter": 0},
        TASKENGINE_RETRY={"set": {"base_backoff": 2000}},
    )

    def fails(payload: Any) -> None:
        raise OddError(f"{current_task.attempt} of {current_task.max_attempts}")

    shop.engine.task("set", retry=RetryPolicy(max_attempts=2, base_backoff=900))(fails)
    shop.engine.task("own", retry=RetryPolicy(base_backoff=900))(fails)
    shop.engine.task("default")(fails)
    wanted = {"set": ("1 of 2", 2000), "own": ("1 of 4", 900), "default": ("1 of 4", 700)}
    ids = {task_type: shop.enqueue(task_type) for task_type in wanted}
    row = shop.enqueue("set", max_attempts=7)
    run_worker(shop)
    for task_type, (text, backoff) in wanted.items():
        wait_until(partial(has_failed, shop, ids[task_type]))
        assert shop.task(ids[task_type]).last_error == f"{ODD}: {text}"
        assert backoff - 60 < shop.seconds_until_due(ids[task_type]) <= backoff
    wait_until(lambda: shop.task(row).last_error == f"{ODD}: 1 of 7")


def test_r21_simultaneous_failures_do_not_come_back_together(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Jitter spreads what failed at the same time (faults 103)."""
    shop = make_shop(TASKENGINE_DEFAULT_RETRY={"base_backoff": 1000, "jitter": 0.2, "max_backoff": 5000})

    @shop.engine.task("fails")
    def fails(payload: Any) -> None:
        raise OddError

    ids = shop.enqueue_many(*["fails"] * 40)
    run_worker(shop, 8)
    wait_until(lambda: all(shop.task(i).last_error for i in ids), 30)
    waits = sorted((shop.task(i).available_at - shop.task(i).updated_at).total_seconds() for i in ids)
    assert 799 <= waits[0] < 900
    assert 1100 < waits[-1] <= 1201
    assert len({round(wait, 1) for wait in waits}) > 30


def test_r21_retried_for_ever_keeps_the_cap(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """``max_attempts=None`` retries for ever; 10,000 failures in a row still give the cap."""
    shop = make_shop(TASKENGINE_DEFAULT_RETRY={"max_attempts": None, "max_backoff": 600, "jitter": 0})

    @shop.engine.task("fails")
    def fails(payload: Any) -> None:
        raise OddError

    task_id = shop.enqueue("fails")
    shop.sql("UPDATE taskengine_task SET attempts = 10000")
    run_worker(shop)
    wait_until(lambda: shop.task(task_id).last_error is not None)
    assert shop.task(task_id).attempts == 10001
    assert 500 < shop.seconds_until_due(task_id) <= 600

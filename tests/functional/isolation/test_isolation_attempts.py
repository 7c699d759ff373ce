"""Attempts with isolation="process" that end by themselves: what goes in, what comes out, what is committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shop import Shop
from tests.support.waiting import wait_until

from .conftest import StartIsolated, on_sqlite


def test_r25_typed_payload_in_typed_result_out(shop: Shop, start_isolated: StartIsolated) -> None:
    """The handler gets its dataclass, with any text and any length, and what it returns is stored as JSON."""
    notes = ["ä€😀\u2028", "x" * 500_000]
    start_isolated("--concurrency", "1")
    task = shop.wait_for(shop.enqueue("order", {"number": 21, "notes": notes}), timeout=20)
    assert (task.status, task.result) == ("SUCCEEDED", {"total": 42, "notes": notes})


@on_sqlite
def test_a_payload_that_can_not_be_read_fails_at_once(shop: Shop, start_isolated: StartIsolated) -> None:
    """The task is FAILED with the faults' paths; nothing is retried."""
    start_isolated("--concurrency", "1")
    task = shop.wait_for(shop.enqueue("order", {"number": "many"}), timeout=20)
    assert (task.status, task.attempts) == ("FAILED", 1)
    assert "number" in (task.last_error or "")


def test_r10_effects_are_committed_with_the_completion(shop: Shop, start_isolated: StartIsolated) -> None:
    """One transaction, and commits of the handler's own before it."""
    start_isolated("--concurrency", "2")
    ids = [shop.enqueue("effect", "one"), shop.enqueue("effects", ["two", "three"])]
    assert [shop.wait_for(task_id, timeout=20).status for task_id in ids] == ["SUCCEEDED", "SUCCEEDED"]
    assert sorted(shop.effects()) == ["one", "three", "two"]


def test_r10_a_failure_is_rolled_back_and_told(shop: Shop, start_isolated: StartIsolated) -> None:
    """The error travels with class, message and traceback; the effect does not exist."""
    start_isolated("--concurrency", "1")
    task = shop.wait_for(shop.enqueue("effect.fails", "nothing"), timeout=20)
    assert (task.status, task.last_error) == ("DEAD", "ValueError: nothing is not to be")
    assert "in effect_fails" in shop.attempts(task.id)[0]["traceback"]
    assert shop.effects() == []


@on_sqlite
def test_reject_retry_and_snooze_travel(shop: Shop, start_isolated: StartIsolated) -> None:
    """Each ends its attempt as it does in a thread."""
    start_isolated("--concurrency", "1")
    rejected, retried, snoozed = (shop.enqueue(name) for name in ("rejects", "retries", "snoozes"))
    assert shop.wait_for(rejected, timeout=20).last_error == "Reject: never"
    assert shop.task(rejected).status == "FAILED"
    wait_until(lambda: shop.seconds_until_due(snoozed) > 10 and shop.seconds_until_due(retried) > 10)
    assert shop.task(retried).last_error == "Retry: not now"
    assert (shop.task(retried).attempts, shop.task(snoozed).attempts) == (1, 0)
    assert 3500 < shop.seconds_until_due(retried) < 3601
    assert 7100 < shop.seconds_until_due(snoozed) < 7201


@on_sqlite
def test_sys_exit_is_a_failed_attempt(shop: Shop, start_isolated: StartIsolated) -> None:
    """A SystemExit ends the attempt, as any other exception does."""
    start_isolated("--concurrency", "1")
    assert shop.wait_for(shop.enqueue("exits.politely"), timeout=20).last_error == "SystemExit: 7"


@on_sqlite
def test_the_context_is_there(shop: Shop, start_isolated: StartIsolated) -> None:
    """TaskContext and current_task tell in the process what they tell in a thread, and its logger logs."""
    worker = start_isolated("--concurrency", "1")
    task = shop.wait_for(shop.enqueue("context", idempotency_key="k", max_attempts=3), timeout=20)
    assert task.status == "SUCCEEDED", task.last_error
    seconds_left = task.result.pop("seconds_left")
    assert task.result == {"attempt": 1, "max_attempts": 3, "token": 1, "key": "k", "cancelled": False, "lease_lost": False}
    assert 50 < seconds_left <= 60
    worker.wait_for_log("said by the handler")


@on_sqlite
def test_each_attempt_has_a_process_of_its_own(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """Its own main thread and process group, no descriptor of another attempt, and programs that it starts heed signals."""
    start_isolated("--concurrency", "3")
    (tmp_path / "waits").touch()
    waiting = shop.enqueue("waits", str(tmp_path / "waits"))
    shop.wait_for(waiting, "RUNNING", timeout=20)
    told = [shop.wait_for(shop.enqueue("process"), timeout=20).result for _ in range(2)]
    (tmp_path / "waits").unlink()
    shop.wait_for(waiting)
    assert told[0]["pid"] != told[1]["pid"]
    for one in told:
        assert one["main_thread"]
        assert one["group"] == one["pid"]
        assert one["child_dies_of_sigterm"]
    assert told[0]["files"] == told[1]["files"], "the second finds what the first has left open"


@pytest.mark.timeout(180)
def test_r10_two_hundred_tasks_exactly_once(shop: Shop, start_isolated: StartIsolated) -> None:
    """With four at a time, every effect is there once, and every task has one attempt."""
    _drain(shop, start_isolated, 200)
    assert {(task.status, task.attempts) for task in shop.tasks()} == {("SUCCEEDED", 1)}


def test_tasks_that_are_deleted_at_completion(shop: Shop, start_isolated: StartIsolated) -> None:
    """Where retention says so, the process removes the row in the transaction of the effect."""
    _drain(shop, start_isolated, 20, RETENTION='{"succeeded": 0}')
    assert shop.tasks() == []


def _drain(shop: Shop, start_isolated: StartIsolated, number: int, **settings: str) -> None:
    with shop.app.app_context():
        shop.engine.enqueue_many({"type": "effect", "payload": f"e{n}"} for n in range(number))
        shop.db.session.commit()
    worker = start_isolated("--concurrency", "4", "--drain", **settings)
    assert worker.wait(150) == 0, worker.log
    assert sorted(shop.effects()) == sorted(f"e{n}" for n in range(number))

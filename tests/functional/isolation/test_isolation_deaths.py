"""Attempts with isolation="process" that have to be ended, and processes that die."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.shop import Shop

from .conftest import StartIsolated, on_postgresql, on_sqlite, pid_in, wait_until_gone


@on_sqlite
def test_r22_a_handler_that_hangs_is_killed(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """Stuck in C with the interpreter's lock held: timed out, with the place where it hung; its slot is usable at once."""
    start_isolated("--concurrency", "1")
    hung = shop.enqueue("hangs", str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    begun = time.monotonic()
    after = shop.enqueue("effect", "after")
    assert shop.wait_for(after, timeout=20).status == "SUCCEEDED"
    assert time.monotonic() - begun < 4
    task = shop.wait_for(hung)
    assert (task.status, task.last_error) == ("DEAD", "TaskTimedOut: timed out after 1 s")
    assert "in _hang" in shop.attempts(hung)[0]["traceback"]
    wait_until_gone(pid)


@on_sqlite
def test_r22_a_handler_that_sleeps_is_interrupted_first(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """Whatever waits in Python gets the exception at once, and cleans up."""
    start_isolated("--concurrency", "1")
    task = shop.wait_for(shop.enqueue("sleeps", str(tmp_path / "note")), timeout=20)
    assert (task.status, task.last_error) == ("DEAD", "TaskTimedOut: timed out after 1 s")
    assert (tmp_path / "note").read_text() == "cleaned up"


@on_sqlite
def test_r22_a_timeout_ends_what_the_handler_has_started(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """A program that a hanging handler has started is killed with it."""
    start_isolated("--concurrency", "1")
    task = shop.enqueue("starts.a.program", str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    assert shop.wait_for(task, timeout=20).last_error == "TaskTimedOut: timed out after 1 s"
    wait_until_gone(pid)


@on_postgresql
def test_r22_a_timeout_cancels_the_statement(shop: Shop, start_isolated: StartIsolated) -> None:
    """The server does not go on with what nobody waits for any more."""
    start_isolated("--concurrency", "1")
    assert shop.wait_for(shop.enqueue("runs.a.statement"), timeout=20).last_error == "TaskTimedOut: timed out after 1 s"
    assert shop.sql("SELECT 1 FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()") == []


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("exit", "ProcessDied: the process ended with exit code 3 before its handler did"),
        ("exit 0", "ProcessDied: the process ended with exit code 0 before its handler did"),
        ("segfault", "ProcessDied: the process was killed by SIGSEGV; its peak was"),
        ("killed", "ProcessDied: the process was killed by SIGKILL, as a system does that runs out of memory; its peak was"),
    ],
)
def test_r12_a_process_that_dies_is_a_failed_attempt(shop: Shop, start_isolated: StartIsolated, how: str, error: str) -> None:
    """The error names the exit code or the signal; the effect is rolled back; the worker goes on."""
    start_isolated("--concurrency", "1")
    died = shop.wait_for(shop.enqueue("dies", how), timeout=20)
    assert died.status == "DEAD"
    assert (died.last_error or "").startswith(error)
    if how == "segfault":
        assert "in dies" in shop.attempts(died.id)[0]["traceback"]
    shop.wait_for(shop.enqueue("effect", "after"))
    assert shop.effects() == ["after"]


@on_sqlite
def test_a_task_whose_process_died_is_retried(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """It counts as an attempt like any other; the second succeeds."""
    start_isolated("--concurrency", "1")
    task = shop.wait_for(shop.enqueue("dies.once", str(tmp_path)), timeout=20)
    assert (task.status, task.attempts) == ("SUCCEEDED", 2)
    assert shop.effects() == [str(tmp_path)]


def test_r10_a_process_that_dies_after_its_commit_has_succeeded(shop: Shop, start_isolated: StartIsolated) -> None:
    """Nobody was told, but the row says so: no failure is recorded, and nothing runs twice."""
    worker = start_isolated("--concurrency", "1")
    task = shop.wait_for(shop.enqueue("dies.after.commit", "once"), timeout=20)
    shop.wait_for(shop.enqueue("effect", "after"))
    assert (shop.task(task.id).status, shop.task(task.id).attempts, shop.attempts(task.id)) == ("SUCCEEDED", 1, [])
    assert shop.effects() == ["once", "after"]
    worker.wait_for_log(rf"task {task.id} \(dies.after.commit\) succeeded")


@on_sqlite
def test_the_memory_cap_is_for_the_handler(shop: Shop, start_isolated: StartIsolated) -> None:
    """Below the cap a handler may take what it wants, beyond what the app has taken; above, the attempt fails and says why."""
    start_isolated("--concurrency", "1", ISOLATION_MEMORY="64MiB")
    assert shop.wait_for(shop.enqueue("takes.memory", 40), timeout=20).result == 40 * 2**20
    task = shop.wait_for(shop.enqueue("takes.memory", 80), timeout=20)
    assert (task.status, task.last_error) == ("DEAD", "MemoryError: killed: out of memory cap of 64 MiB")


@on_sqlite
def test_a_crash_under_a_memory_cap_names_it(shop: Shop, start_isolated: StartIsolated) -> None:
    """Code in C may not survive that it gets no memory; the signal is told, and the likely reason."""
    start_isolated("--concurrency", "1", ISOLATION_MEMORY="64MiB")
    error = shop.wait_for(shop.enqueue("takes.memory.in.c", 80), timeout=20).last_error or ""
    assert error.startswith("ProcessDied: killed: out of memory cap of 64 MiB, most likely; the process was killed by SIGSEGV, its peak")


@on_sqlite
def test_without_a_cap_memory_is_free(shop: Shop, start_isolated: StartIsolated) -> None:
    """By default nothing is capped."""
    start_isolated("--concurrency", "1")
    assert shop.wait_for(shop.enqueue("takes.memory", 80), timeout=20).result == 80 * 2**20


@on_sqlite
def test_a_cancel_reaches_the_handler(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """context.cancelled becomes true within a heartbeat; what the handler then commits goes with CANCELLED."""
    start_isolated("--concurrency", "1", HEARTBEAT_INTERVAL="200ms")
    task_id = shop.enqueue("heeds", str(tmp_path / "pid"))
    pid_in(tmp_path / "pid")
    _cancel(shop, task_id)
    assert shop.wait_for(task_id).status == "CANCELLED"
    assert (tmp_path / "pid").read_text() == "cancelled"


@on_sqlite
@pytest.mark.parametrize("task_type", ["waits", "hangs.long"])
def test_a_cancel_ends_a_handler_that_does_not_look(shop: Shop, start_isolated: StartIsolated, tmp_path: Path, task_type: str) -> None:
    """It is interrupted after a moment, or killed where it does not react, and has left nothing."""
    start_isolated("--concurrency", "1", HEARTBEAT_INTERVAL="200ms")
    task_id = shop.enqueue(task_type, str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    _cancel(shop, task_id)
    assert shop.wait_for(task_id, timeout=15).status == "CANCELLED"
    assert shop.effects() == []
    wait_until_gone(pid)


def _cancel(shop: Shop, task_id: int) -> None:
    with shop.app.app_context():
        shop.engine.cancel(task_id)
        shop.db.session.commit()


def test_r10_a_lost_lease_refuses_what_the_process_writes(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """Another claim holds the task: neither the completion nor the effect is kept."""
    start_isolated("--concurrency", "1", HEARTBEAT_INTERVAL="200ms")
    task_id = shop.enqueue("waits", str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    shop.sql(f"UPDATE taskengine_task SET claims = claims + 1 WHERE id = {task_id}")
    (tmp_path / "pid").unlink()
    wait_until_gone(pid)
    assert (shop.task(task_id).status, shop.effects()) == ("RUNNING", [])


@on_sqlite
def test_a_lost_lease_reaches_the_handler(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """context.lease_lost becomes true once the node is expired; the effect is kept only if nobody has taken the task meanwhile."""
    start_isolated("--concurrency", "1", HEARTBEAT_INTERVAL="200ms", LEASE="1s")
    task_id = shop.enqueue("heeds", str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    shop.sql("UPDATE taskengine_node SET expired_at = heartbeat_at")
    wait_until_gone(pid)
    assert (tmp_path / "pid").read_text() == "lost"
    assert (len(shop.effects()) == 1) == (shop.wait_for(task_id).status == "SUCCEEDED")

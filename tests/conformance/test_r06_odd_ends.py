"""R6: however oddly an attempt ends, its end is recorded and its slot is free again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import RetryPolicy
from tests.support.shop import Effect, Shop
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

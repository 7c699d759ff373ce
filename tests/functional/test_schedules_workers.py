"""Schedules in real workers: killed, many at once, and with processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from flask_taskengine import TaskStatus
from flask_taskengine.domain.occurrence import occurrence_of
from tests.support.hosts import MakeApp
from tests.support.schedules import act, overdue, schedule_of, tasks_of, wait_for_runs
from tests.support.shop import Shop, open_shop
from tests.support.waiting import wait_until
from tests.support.worker import StartWorker, WorkerProcess

from . import scheduled_host

APP = "tests.functional.scheduled_host:create_app"
Start = Callable[..., WorkerProcess]


@pytest.fixture
def shop(make_app: MakeApp, database_url: str) -> Iterator[Shop]:
    """Look at the database of the workers, with the schedules of their code."""
    with open_shop(make_app, database_url) as shop:
        for declare in scheduled_host._DECLARE.values():
            declare(shop.engine)
        yield shop


@pytest.fixture
def start(shop: Shop, start_worker: StartWorker) -> Start:
    """Start a worker that declares the named schedules; keywords are settings."""

    def start(scheduled: str, *options: str, **settings: Any) -> WorkerProcess:
        env = {f"FLASK_TASKENGINE_{name}": str(value) for name, value in settings.items()} | {"SCHEDULED": scheduled}
        return start_worker(APP, *options, url=shop.outside.url.render_as_string(hide_password=False), env=env)

    return start


@pytest.mark.timeout(150)
def test_r19_every_second_while_workers_are_killed(shop: Shop, start: Start) -> None:
    """Two workers, one of them killed every few seconds: each occurrence succeeds exactly once, and none is lost.

    The policy of the schedule is to make up for all; nothing that a killed run has written is left.
    """
    settings = {"LEASE": 1.5, "HEARTBEAT_INTERVAL": 0.4}

    def new_worker() -> WorkerProcess:
        worker = start("second", "--concurrency", "2", **settings)
        worker.wait_for_log("wake-ups by", 40)
        return worker

    workers = [new_worker(), new_worker()]
    for number in range(4):
        wait_until(_runs_more(shop, 2), 40)
        wait_until(lambda: tasks_of(shop, "second", TaskStatus.RUNNING), 40)
        workers[number % 2].kill()
        workers[number % 2] = new_worker()
    reached = schedule_of(shop, "second").next_at
    assert reached is not None
    wait_until(lambda: (schedule_of(shop, "second").last_scheduled_at or reached - timedelta(1)) > reached, 60)
    assert [worker.terminate() for worker in workers] == [0, 0]
    done = [task for task in tasks_of(shop, "second") if task.status is TaskStatus.SUCCEEDED]
    assert {task.status for task in tasks_of(shop, "second")} <= {TaskStatus.SUCCEEDED, TaskStatus.PENDING}
    times = [occurrence.scheduled_at for task in done if (occurrence := occurrence_of(task.idempotency_key)) is not None]
    assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(seconds=1)}
    assert shop.effects() == [f"{time:%H:%M:%S}" for time in times]
    assert schedule_of(shop, "second").successes == len(done) >= 8


def _runs_more(shop: Shop, count: int) -> Callable[[], bool]:
    runs = len(shop.effects())
    return lambda: len(shop.effects()) >= runs + count


@pytest.mark.timeout(90)
def test_r19_a_run_that_takes_many_periods_in_many_workers(shop: Shop, start: Start) -> None:
    """A run of half a second every tenth of one, in two workers of two processes each: one begins when the last has ended."""
    for _ in range(2):
        start("slow", "--processes", "2", "--concurrency", "2")
    wait_for_runs(shop, "slow", 6, timeout=40)
    words = [name.split() for name in shop.effects()]
    assert [word for _, word in words[:12]] == ["begins", "ends"] * 6
    assert [task_id for task_id, _ in words[0:12:2]] == [task_id for task_id, _ in words[1:12:2]]
    runs = tasks_of(shop, "slow", TaskStatus.SUCCEEDED)
    assert all(earlier.finished_at <= later.claimed_at for earlier, later in pairwise(runs))  # type: ignore[operator]


@pytest.mark.timeout(90)
def test_runs_in_processes_of_their_own(shop: Shop, start: Start) -> None:
    """State, next time and retries travel, whether the handler's session was used or not."""
    start("apart,later")
    for number, runs in ((1, 1), (2, 3)):
        made = act(shop, "run_now", "apart", move_next=True)
        assert shop.wait_for(made.id, timeout=30).attempts == number
        schedule = wait_for_runs(shop, "apart", runs, timeout=30)
        assert schedule.next_at - schedule.last_ended_at == timedelta(hours=2)  # type: ignore[operator]
    assert schedule_of(shop, "apart").state == [0, 2]
    assert len(set(shop.effects())) == 2
    act(shop, "run_now", "later", move_next=True)
    schedule = wait_for_runs(shop, "later", 1, timeout=30)
    assert schedule.next_at - schedule.last_ended_at == timedelta(hours=3)  # type: ignore[operator]
    assert set(schedule.state) == {"pid"}


@pytest.mark.timeout(90)
def test_a_drain_makes_up_for_what_was_missed(shop: Shop, start: Start) -> None:
    """A worker that is started now and then, by another clock, runs what has become due since."""
    assert start("second", "--drain").wait() == 0
    before = schedule_of(shop, "second").runs
    overdue(shop, "second", 5)
    assert start("second", "--drain").wait(60) == 0
    assert schedule_of(shop, "second").runs >= before + 4

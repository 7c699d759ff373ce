"""Schedules that run in a worker: one at a time, with their state, their retries and what is announced of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import Backoff, Cron, Dynamic, FixedDelay, FixedRate, Reject, Snooze, TaskContext, TaskStatus
from flask_taskengine.domain.outcome import Orphaned
from flask_taskengine.runtime.completer import Ended
from flask_taskengine.store import tasks
from tests.support.schedules import (
    act,
    begin,
    database_now,
    declare_all,
    overdue,
    own_transaction,
    schedule_of,
    set_row,
    tasks_of,
    wait_for_runs,
)
from tests.support.shop import Effect, Events, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until

FAR = Cron("0 0 1 1 *")
"""Comes only when a test says so."""


class Gate:
    """Handlers that stop here until the test lets them go on, and how many are inside."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self._lock = threading.Lock()
        self.inside = self.most = self.entered = 0

    @contextmanager
    def pass_through(self) -> Iterator[None]:
        """Count a handler while it is inside, and wait until the gate is open."""
        with self._lock:
            self.inside += 1
            self.entered += 1
            self.most = max(self.most, self.inside)
        try:
            assert self.open.wait(20)
            yield
        finally:
            with self._lock:
                self.inside -= 1


# --- one at a time --------------------------------------------------------------------------------------------------------


def test_r19_a_long_run_of_a_frequent_schedule_never_overlaps(shop: Shop, run_worker: RunWorker) -> None:
    """Two workers and a handler that takes many periods: one execution at a time, each begun after the last had ended."""
    gate = Gate()

    @shop.engine.schedule("sweep", FixedRate("20ms"))
    def sweep(context: TaskContext) -> None:
        with gate.pass_through():
            shop.db.session.add(Effect(name=f"{context.task_id}"))

    workers = [run_worker(shop), run_worker(shop)]
    wait_until(lambda: gate.entered == 1)
    set_row(shop, "sweep", next_at=database_now(shop) - timedelta(hours=1))
    for worker in workers:
        worker.wake()
    gate.open.set()
    wait_for_runs(shop, "sweep", 8)
    for worker in workers:
        worker.stop(5)
    assert gate.most == 1
    runs = tasks_of(shop, "sweep", TaskStatus.SUCCEEDED)
    assert all(earlier.finished_at <= later.claimed_at for earlier, later in pairwise(runs))  # type: ignore[operator]
    assert len(shop.effects()) == len(runs) == schedule_of(shop, "sweep").successes


def test_a_delay_counts_from_the_end_of_the_run(shop: Shop, run_worker: RunWorker) -> None:
    """By the database's clock and to the millisecond: the next time is the end plus the delay, and no run begins before it."""

    @shop.engine.schedule("sweep", FixedDelay("80ms"))
    def sweep() -> None:
        shop.db.session.add(Effect(name=str(len(shop.effects()))))

    run_worker(shop)
    wait_for_runs(shop, "sweep", 4)
    runs = tasks_of(shop, "sweep", TaskStatus.SUCCEEDED)
    for earlier, later in pairwise(runs):
        assert earlier.finished_at is not None
        assert later.available_at - earlier.finished_at == timedelta(milliseconds=80)
        assert later.claimed_at is not None
        assert later.claimed_at >= later.available_at


def test_a_rate_is_never_early_and_skips_no_time(shop: Shop, run_worker: RunWorker) -> None:
    """Where all are made up for, the occurrences are a grid without holes, and none begins before its time."""

    @shop.engine.schedule("tick", FixedRate("50ms"), misfire="all", misfire_limit=100_000)
    def tick() -> None: ...

    run_worker(shop)
    wait_for_runs(shop, "tick", 20)
    runs = tasks_of(shop, "tick")
    assert {later.available_at - earlier.available_at for earlier, later in pairwise(runs)} == {timedelta(milliseconds=50)}
    assert all(run.claimed_at is None or run.claimed_at >= run.available_at for run in runs)


def test_a_dead_occurrence_that_is_retried_by_hand_waits_for_its_turn(shop: Shop, run_worker: RunWorker) -> None:
    """It runs, but not beside the regular one."""
    gate = Gate()
    fail = True

    @shop.engine.schedule("sweep", FAR)
    def sweep() -> None:
        if fail:
            raise ValueError("no")
        with gate.pass_through():
            pass

    run_worker(shop)
    dead = act(shop, "run_now", "sweep").id
    shop.wait_for(dead, TaskStatus.DEAD)
    fail = False
    running = act(shop, "run_now", "sweep").id
    wait_until(lambda: gate.inside == 1)
    with shop.app.app_context():
        shop.engine.retry(dead)
        shop.db.session.commit()
    wait_until(lambda: shop.task(dead).claims >= 2 and shop.task(dead).status is TaskStatus.PENDING)
    gate.open.set()
    shop.wait_for(running, TaskStatus.SUCCEEDED)
    assert shop.wait_for(dead).status is TaskStatus.SUCCEEDED
    assert gate.most == 1
    assert schedule_of(shop, "sweep").successes == 2


# --- what a handler is told, and its state ----------------------------------------------------------------------------------


def test_r19_the_state_is_stored_with_the_work_and_handed_on(shop: Shop, run_worker: RunWorker) -> None:
    """It belongs to the transaction of the handler's work: a run that fails leaves neither, the next run finds the last good one."""
    seen: list[Any] = []

    @shop.engine.schedule("import", FAR)
    def load(context: TaskContext) -> None:
        assert context.schedule is not None
        seen.append(context.schedule.state)
        page = (context.schedule.state or {"page": 0})["page"] + 1
        context.schedule.state = {"page": page}
        shop.db.session.add(Effect(name=f"page {page} of run {len(seen)}"))
        shop.db.session.flush()
        if len(seen) == 2:
            raise ValueError("no")

    run_worker(shop)
    for number in range(1, 4):
        act(shop, "run_now", "import")
        wait_for_runs(shop, "import", number)
    assert seen == [None, {"page": 1}, {"page": 1}]
    assert shop.effects() == ["page 1 of run 1", "page 2 of run 3"]
    assert schedule_of(shop, "import").state == {"page": 2}


def test_a_state_changed_in_place_is_kept(shop: Shop, run_worker: RunWorker) -> None:
    """Also by a handler that touches no session."""

    @shop.engine.schedule("count", FixedDelay("10ms"))
    def count(context: TaskContext) -> None:
        assert context.schedule is not None
        if context.schedule.state is None:
            context.schedule.state = []
        context.schedule.state.append(context.schedule.runs)

    run_worker(shop)
    wait_for_runs(shop, "count", 3)
    assert schedule_of(shop, "count").state[:3] == [0, 1, 2]


def test_a_state_that_is_no_json_is_a_failure(shop: Shop, run_worker: RunWorker) -> None:
    """The run fails with a message that names it, and its work is rolled back."""

    @shop.engine.schedule("wrong", FAR)
    def wrong(context: TaskContext) -> None:
        assert context.schedule is not None
        shop.db.session.add(Effect(name="lost"))
        context.schedule.state = {"handler": wrong}

    run_worker(shop)
    task = shop.wait_for(act(shop, "run_now", "wrong").id)
    assert task.status is TaskStatus.DEAD
    assert ".handler" in (task.last_error or "")
    assert shop.effects() == []


def test_what_the_handler_is_told(shop: Shop, run_worker: RunWorker) -> None:
    """Scheduled time, attempt, runs since the last success, totals, last success, and the next regular time."""
    told: list[dict[str, Any]] = []

    @shop.engine.schedule("report", FAR, on_failure=Backoff.fixed("10ms", max_attempts=2))
    def report(context: TaskContext) -> None:
        schedule = context.schedule
        assert schedule is not None
        names = ("name", "scheduled_at", "by_hand", "attempt", "runs", "successes", "runs_since_success", "last_success_at", "next_at")
        told.append({name: getattr(schedule, name) for name in names} | {"of": context.max_attempts, "same": context.attempt})
        if len(told) in (2, 3):
            raise ValueError("no")

    declare_all(shop)
    first = overdue(shop, "report", 1)
    run_worker(shop)
    wait_for_runs(shop, "report", 1)
    act(shop, "run_now", "report")
    wait_for_runs(shop, "report", 3)
    act(shop, "run_now", "report")
    schedule = wait_for_runs(shop, "report", 4)
    year = FAR.after(database_now(shop))
    assert told[0] == {
        "name": "report",
        "scheduled_at": first,
        "by_hand": False,
        "attempt": 1,
        "runs": 0,
        "successes": 0,
        "runs_since_success": 0,
        "last_success_at": None,
        "next_at": year,
        "of": 2,
        "same": 1,
    }
    counts = [(one["attempt"], one["runs"], one["successes"], one["runs_since_success"], one["by_hand"]) for one in told]
    assert counts == [(1, 0, 0, 0, False), (1, 1, 1, 0, True), (2, 2, 1, 1, True), (1, 3, 1, 2, True)]
    assert told[1]["last_success_at"] == told[3]["last_success_at"] is not None
    assert (schedule.runs, schedule.successes, schedule.runs_since_success, schedule.next_at) == (4, 2, 0, year)


def test_a_task_of_no_schedule_is_told_nothing_of_one(shop: Shop, run_worker: RunWorker) -> None:
    """Also where its key looks like one."""
    seen: list[Any] = []
    shop.engine.task("plain")(lambda payload, context: seen.append(context.schedule))
    run_worker(shop)
    assert shop.wait_for(shop.enqueue("plain")).status is TaskStatus.SUCCEEDED
    assert seen == [None]
    task = shop.wait_for(shop.enqueue("plain", idempotency_key="schedule:none:2026-01-01T00:00:00Z"))
    assert (task.status, "was removed" in (task.last_error or "")) == (TaskStatus.FAILED, True)


# --- failures ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff.none(), []),
        (None, []),
        (Backoff.fixed("20ms", 4), [0.02, 0.02, 0.02]),
        (Backoff.linear("20ms", 4), [0.02, 0.04, 0.06]),
        (Backoff.arithmetic("20ms", 4), [0.02, 0.06, 0.1]),
        (Backoff.geometric("20ms", 5, cap="70ms"), [0.02, 0.04, 0.07, 0.07]),
    ],
)
def test_r19_a_run_that_fails_is_tried_again_as_the_setting_says(
    shop: Shop, run_worker: RunWorker, events: Events, backoff: Backoff | None, waits: list[float]
) -> None:
    """After each wait of the series; when the attempts are used up the occurrence is DEAD, and the schedule goes on."""

    @shop.engine.schedule("fails", FixedRate("1h"), on_failure=backoff)
    def fails() -> None:
        raise ValueError("no")

    declare_all(shop)
    due_at = overdue(shop, "fails", 0)
    run_worker(shop)
    wait_until(lambda: schedule_of(shop, "fails").last_task_id is not None)
    task = shop.wait_for(schedule_of(shop, "fails").last_task_id or 0)
    assert (task.status, task.attempts) == (TaskStatus.DEAD, len(waits) + 1)
    assert [fields["delay"] for fields in events.of("task_retried")] == waits
    schedule = schedule_of(shop, "fails")
    assert (schedule.task_id, schedule.next_at, schedule.runs_since_success) == (None, due_at + timedelta(hours=1), len(waits) + 1)
    overdue(shop, "fails", 0)
    assert wait_for_runs(shop, "fails", len(waits) + 2).last_task_id != task.id


def test_no_retry_comes_after_the_next_cron_time(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """The earlier of the two: where the next regular time comes first, the occurrence is given up and the next one runs."""

    @shop.engine.schedule("fails", Cron("* * * * * *"), on_failure=Backoff.fixed("1h"))
    def fails() -> None:
        raise ValueError("no")

    @shop.engine.schedule("rate", FixedRate("1s"), on_failure=Backoff.fixed("1h"))
    def rate() -> None:
        raise ValueError("no")

    run_worker(shop)
    wait_for_runs(shop, "fails", 2)
    assert {(task.status, task.attempts) for task in tasks_of(shop, "fails")[:2]} == {(TaskStatus.DEAD, 1)}
    wait_for_runs(shop, "rate", 1)
    (task,) = tasks_of(shop, "rate")
    assert (task.status, shop.seconds_until_due(task.id) > 3500) == (TaskStatus.PENDING, True)


def test_a_hundred_failures_in_a_row(shop: Shop) -> None:
    """The engine asks for waits that never shrink, never pass the cap and are never negative."""

    @shop.engine.schedule("fails", FixedRate("1h"), on_failure=Backoff.geometric("1s", max_attempts=None, cap="10m"))
    def fails() -> None: ...

    declare_all(shop)
    overdue(shop, "fails", 0)
    begin(shop)
    worker = shop.worker()
    delays: list[float] = []
    for _ in range(100):
        shop.sql("UPDATE taskengine_task SET status = 'RUNNING', attempts = attempts + 1, claims = claims + 1, claimed_at = created_at")
        (task,) = shop.tasks()
        with own_transaction(shop) as connection:
            claimed = tasks.claimed(connection, shop.dialect.tables, task.id, task.claims)
            assert claimed is not None
            outcome = worker.completer.settle(connection, Ended(claimed, _raised(), 0.0))
            assert outcome is not None
            assert outcome.delay is not None
            delays.append(outcome.delay)
    worker.database.close()
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (1, 600)
    assert schedule_of(shop, "fails").runs_since_success == 100


def _raised() -> Any:
    from flask_taskengine.domain.outcome import Failure, Raised

    return Raised(Failure("ValueError", "no"))


@pytest.mark.parametrize("on_failure", [None, Backoff.fixed("1h", 2)])
def test_a_node_that_dies_is_no_failure_of_the_handler(shop: Shop, on_failure: Backoff | None) -> None:
    """The occurrence is due again at once, up to three runs in all, and the schedule is blocked by none of it."""

    @shop.engine.schedule("sweep", FixedRate("1h"), on_failure=on_failure)
    def sweep() -> None: ...

    declare_all(shop)
    overdue(shop, "sweep", 0)
    begin(shop)
    worker = shop.worker()
    statuses = []
    for _ in range(3):
        shop.sql("UPDATE taskengine_task SET status = 'RUNNING', attempts = attempts + 1, claims = claims + 1, claimed_at = created_at")
        (task,) = shop.tasks()
        with own_transaction(shop) as connection:
            claimed = tasks.claimed(connection, shop.dialect.tables, task.id, task.claims)
            assert claimed is not None
            worker.completer.settle(connection, Ended(claimed, Orphaned("the node died"), 0.0))
        statuses.append((shop.task(task.id).status, shop.seconds_until_due(task.id) <= 0))
    worker.database.close()
    assert statuses == [(TaskStatus.PENDING, True)] * 2 + [(TaskStatus.DEAD, True)]
    assert schedule_of(shop, "sweep").task_id is None


def test_a_rejected_occurrence_is_over(shop: Shop, run_worker: RunWorker) -> None:
    """Reject ends it at once; the schedule goes on."""

    @shop.engine.schedule("rejects", FAR, on_failure=Backoff.fixed("10ms"))
    def rejects() -> None:
        raise Reject("never")

    run_worker(shop)
    assert shop.wait_for(act(shop, "run_now", "rejects").id).status is TaskStatus.FAILED
    assert schedule_of(shop, "rejects").task_id is None


def test_a_snoozed_occurrence_is_the_same_one_later(shop: Shop, run_worker: RunWorker) -> None:
    """It does not count as a run."""
    tried: list[int] = []

    @shop.engine.schedule("snoozes", FAR)
    def snoozes(context: TaskContext) -> None:
        tried.append(context.attempt)
        if len(tried) < 3:
            raise Snooze("20ms")

    run_worker(shop)
    assert shop.wait_for(act(shop, "run_now", "snoozes").id).status is TaskStatus.SUCCEEDED
    assert tried == [1, 1, 1]
    assert schedule_of(shop, "snoozes").runs == 1


def test_an_occurrence_that_was_cancelled_or_deleted_blocks_nothing(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Whatever a person does to its task, the schedule goes on with its next time."""
    shop = make_shop(TASKENGINE_POLL_INTERVAL=0.1)

    @shop.engine.schedule("fails", FixedRate("1h"), on_failure=Backoff.fixed("1h"))
    def fails() -> None:
        raise ValueError("no")

    declare_all(shop)
    run_worker(shop)
    for verb in ("cancel", "delete"):
        overdue(shop, "fails", 0)
        wait_until(lambda: [task for task in tasks_of(shop, "fails", TaskStatus.PENDING) if task.attempts])
        (waiting,) = tasks_of(shop, "fails", TaskStatus.PENDING)
        with shop.app.app_context():
            getattr(shop.engine, verb)(waiting.id)
            shop.db.session.commit()
        wait_until(lambda: schedule_of(shop, "fails").task_id is None)


def test_rows_that_are_deleted_at_completion(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Where nothing is kept of what succeeded, schedules run and count as ever."""
    shop = make_shop(TASKENGINE_RETENTION={"succeeded": 0})
    shop.engine.schedule("rate", FixedRate("20ms"))(lambda: None)
    shop.engine.schedule("delay", FixedDelay("20ms"))(lambda: None)
    run_worker(shop)
    for name in ("rate", "delay"):
        assert wait_for_runs(shop, name, 4).successes >= 4
    wait_until(lambda: len(tasks_of(shop, "rate")) <= 1)


# --- the handler says when ----------------------------------------------------------------------------------------------------


def test_a_dynamic_schedule_runs_when_its_handler_says(shop: Shop, run_worker: RunWorker) -> None:
    """By what it returns, or by ``run_next``; by the default where it says nothing."""
    later = datetime(2030, 1, 1, tzinfo=UTC)
    answers: dict[str, Any] = {"wait": timedelta(hours=2), "number": 7200, "moment": later, "nothing": None, "text": "2h"}
    for name in answers:
        shop.engine.schedule(name, Dynamic("1h"))(lambda context: answers[context.type])

    @shop.engine.schedule("asks", Dynamic("1h"))
    def asks(context: TaskContext) -> None:
        assert context.schedule is not None
        context.schedule.run_next("3h")

    run_worker(shop)
    expected = {"wait": 7200, "number": 7200, "nothing": 3600, "text": 7200, "asks": 10800}
    for name in (*answers, "asks"):
        act(shop, "run_now", name, move_next=True)
    for name in (*answers, "asks"):
        schedule = wait_for_runs(shop, name, 1)
        assert schedule.next_at is not None
        assert schedule.last_ended_at is not None
        if name == "moment":
            assert schedule.next_at == later
        else:
            assert (schedule.next_at - schedule.last_ended_at).total_seconds() == expected[name]


def test_what_is_no_time_is_a_failure(shop: Shop, run_worker: RunWorker) -> None:
    """A dynamic handler that returns anything else fails, and the default holds."""
    shop.engine.schedule("wrong", Dynamic("1h"))(lambda: {"rows": 3})
    run_worker(shop)
    task = shop.wait_for(act(shop, "run_now", "wrong").id)
    assert "the time to run at" in (task.last_error or "")
    assert schedule_of(shop, "wrong").next_at is not None


def test_a_function_is_asked_after_success_and_after_failure(shop: Shop, run_worker: RunWorker) -> None:
    """It gets the context and sees the error; what it returns holds, and where it fails itself the default does."""
    asked: list[tuple[str, str | None]] = []

    def next_run(context: TaskContext) -> str:
        assert context.schedule is not None
        error = context.schedule.error
        asked.append((context.type, None if error is None else type(error).__name__))
        if context.type == "broken":
            raise RuntimeError("no")
        return "5h" if error else "2h"

    def fail() -> None:
        raise ValueError("no")

    shop.engine.schedule("good", Dynamic("1h", next_run=next_run))(lambda: None)
    shop.engine.schedule("bad", Dynamic("1h", next_run=next_run))(fail)
    shop.engine.schedule("broken", Dynamic("1h", next_run=next_run))(fail)
    run_worker(shop)
    waits = {}
    for name in ("good", "bad", "broken"):
        act(shop, "run_now", name, move_next=True)
        schedule = wait_for_runs(shop, name, 1)
        assert schedule.next_at is not None
        assert schedule.last_ended_at is not None
        waits[name] = (schedule.next_at - schedule.last_ended_at).total_seconds() / 3600
    assert waits == {"good": 2, "bad": 5, "broken": 1}
    assert sorted(asked) == [("bad", "ValueError"), ("broken", "ValueError"), ("good", None)]


def test_any_handler_may_set_its_next_time_once(shop: Shop, run_worker: RunWorker) -> None:
    """Also on a failure, and before the retries that would come after it; the times after it follow from it."""

    @shop.engine.schedule("polite", FixedRate("1h"), on_failure=Backoff.fixed("3h"))
    def polite(context: TaskContext) -> None:
        assert context.schedule is not None
        context.schedule.run_next("2h")
        raise ValueError("the other side asks for two hours of peace")

    declare_all(shop)
    overdue(shop, "polite", 0)
    run_worker(shop)
    schedule = wait_for_runs(shop, "polite", 1)
    assert schedule.next_at is not None
    assert schedule.last_ended_at is not None
    assert (schedule.next_at - schedule.last_ended_at).total_seconds() == 7200
    assert schedule.task_id is None


# --- what is announced --------------------------------------------------------------------------------------------------------


def test_what_is_announced_of_a_run(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """Started, crashed with the time of the retry, finished with the next time and the duration; after the commit."""
    runs: list[int] = []
    seen: list[Any] = []

    @shop.engine.schedule("report", FixedRate("1h"), on_failure=Backoff.fixed("30ms"))
    def report(context: TaskContext) -> None:
        runs.append(context.attempt)
        if len(runs) == 1:
            raise ValueError("no")

    from flask_taskengine.signals import schedule_finished

    def look(sender: Any, **fields: Any) -> None:
        seen.append(shop.task(fields["task_id"]).status)

    schedule_finished.connect(look, shop.engine)
    declare_all(shop)
    due_at = overdue(shop, "report", 0)
    run_worker(shop)
    wait_until(lambda: seen)
    (task,) = tasks_of(shop, "report")
    common = {"schedule": "report", "task_id": task.id, "scheduled_at": due_at}
    assert [(name, fields["attempt"]) for name, fields in events.seen if name.startswith("schedule_")] == [
        ("schedule_started", 1),
        ("schedule_crashed", 1),
        ("schedule_started", 2),
        ("schedule_finished", 2),
    ]
    (finished,), (crashed,) = events.of("schedule_finished"), events.of("schedule_crashed")
    assert common.items() <= finished.items()
    assert common.items() <= crashed.items()
    assert finished["next_at"] == due_at + timedelta(hours=1)
    assert 0 <= finished["duration"] < 5
    assert (crashed["retried"], crashed["failure"].error_class) == (True, "ValueError")
    assert abs((crashed["next_at"] - task.available_at).total_seconds()) < 0.1
    assert seen == [TaskStatus.SUCCEEDED]


def test_what_is_announced_of_missed_times(shop: Shop, run_worker: RunWorker, events: Events) -> None:
    """The first and the moment up to which, once."""
    shop.engine.schedule("report", FixedRate("1h"), misfire="skip")(lambda: None)
    declare_all(shop)
    due_at = overdue(shop, "report", 4.5 * 3600)
    run_worker(shop)
    wait_until(lambda: events.of("schedule_missed"))
    (missed,) = events.of("schedule_missed")
    assert (missed["schedule"], missed["first"], missed["policy"]) == ("report", due_at, "skip")
    assert missed["until"] > due_at + timedelta(hours=4)


def test_a_receiver_that_fails_stops_no_schedule(shop: Shop, run_worker: RunWorker) -> None:
    """What listens is not what runs."""
    from flask_taskengine.signals import schedule_finished, schedule_started

    def fail(sender: Any, **fields: Any) -> None:
        raise RuntimeError("no")

    schedule_started.connect(fail, shop.engine)
    schedule_finished.connect(fail, shop.engine)
    shop.engine.schedule("report", FixedRate("20ms"))(lambda: None)
    run_worker(shop)
    wait_for_runs(shop, "report", 3)


# --- the scheduler ------------------------------------------------------------------------------------------------------------


def test_a_drain_runs_what_is_due_of_schedules(shop: Shop, run_worker: RunWorker) -> None:
    """Also what was missed, one after the other, before it says that nothing is left."""
    shop.engine.schedule("report", FixedRate("1h"), misfire="all")(lambda: None)
    declare_all(shop)
    overdue(shop, "report", 4.5 * 3600)
    worker = run_worker(shop, drain=True)
    wait_until(worker.drained)
    assert schedule_of(shop, "report").successes == 5


def test_a_worker_for_some_types_leaves_other_schedules_alone(shop: Shop, run_worker: RunWorker) -> None:
    """Nothing is enqueued that nobody would run."""
    for name in ("mine", "other"):
        shop.engine.schedule(name, FixedRate("1h"))(lambda: None)
    declare_all(shop)
    for name in ("mine", "other"):
        overdue(shop, name, 0)
    run_worker(shop, types=frozenset({"mine"}))
    wait_for_runs(shop, "mine", 1)
    assert tasks_of(shop, "other") == []


def test_an_outage_of_the_database_stops_no_schedule(shop: Shop, run_worker: RunWorker) -> None:
    """While statements fail nothing runs; afterwards the schedules go on by themselves."""
    shop.engine.schedule("tick", FixedRate("20ms"))(lambda: None)
    worker = run_worker(shop)
    wait_for_runs(shop, "tick", 2)
    fails = threading.Event()
    failed: list[str] = []

    def refuse(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if fails.is_set() and "taskengine_schedule" in statement:
            failed.append(statement)
            raise sa.exc.OperationalError(statement, None, Exception("the server is gone"))

    sa.event.listen(worker.database.engine, "before_cursor_execute", refuse)
    fails.set()
    wait_until(lambda: len(failed) >= 3)
    runs = schedule_of(shop, "tick").runs
    fails.clear()
    wait_for_runs(shop, "tick", runs + 3)


@pytest.mark.parametrize("database_url", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True)
def test_a_transaction_that_has_locked_a_schedule_delays_no_other_task(shop: Shop, run_worker: RunWorker) -> None:
    """While somebody pauses it and does not commit, the end of its run waits; the ends of all other tasks do not."""
    gate = Gate()

    @shop.engine.schedule("report", FAR)
    def report() -> None:
        with gate.pass_through():
            pass

    shop.engine.task("other")(lambda payload: None)
    run_worker(shop)
    task_id = act(shop, "run_now", "report").id
    wait_until(lambda: gate.inside == 1)
    with shop.app.app_context():
        shop.engine.schedules.pause("report")
        gate.open.set()
        wait_until(lambda: gate.inside == 0)
        shop.sql("INSERT INTO taskengine_task (type) SELECT 'other' FROM generate_series(1, 20)")
        wait_until(lambda: len(tasks_of(shop, "other", TaskStatus.SUCCEEDED)) == 20, 5)
        assert shop.task(task_id).status is TaskStatus.RUNNING
        shop.db.session.commit()
    assert shop.wait_for(task_id).status is TaskStatus.SUCCEEDED
    assert (schedule_of(shop, "report").status, schedule_of(shop, "report").runs) == ("paused", 1)

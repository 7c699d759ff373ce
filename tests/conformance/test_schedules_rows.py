"""The rows of schedules: who writes them, who moves them on, and what a new version of the app does to them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import Backoff, Cron, Dynamic, FixedDelay, FixedRate, TaskStatus
from flask_taskengine.domain.schedule import Misfire, Timing
from flask_taskengine.engine.declare import Declared, declare
from flask_taskengine.engine.definition import Definition
from flask_taskengine.engine.recurring import Raced, free
from flask_taskengine.store import nodes, schedules
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
)
from tests.support.shop import Shop

HOUR = timedelta(hours=1)


def nothing() -> None:
    """Do nothing."""


def at_once(count: int, function: Callable[[], Any]) -> list[Any]:
    """Call a function in so many threads in the same moment, and return what each returned or raised."""
    barrier = threading.Barrier(count)

    def call() -> Any:
        barrier.wait()
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(call) for _ in range(count)]]


# --- exactly one ----------------------------------------------------------------------------------------------------------


def test_r19_fifty_nodes_that_start_together_create_one_row(shop: Shop) -> None:
    """Each writes what the code declares; there is one row of each, and nobody fails."""
    for number in range(3):
        shop.engine.schedule(f"schedule-{number}", FixedRate("1h"))(nothing)
    assert at_once(50, lambda: declare_all(shop)) == [[]] * 50
    assert shop.sql("SELECT name, runs FROM taskengine_schedule ORDER BY name") == [(f"schedule-{number}", 0) for number in range(3)]


def test_r19_twenty_schedulers_create_one_task_per_occurrence(shop: Shop) -> None:
    """Whoever is first enqueues the occurrence; the others find nothing, or are told that they were late."""
    shop.engine.schedule("report", FixedRate("1h"))(nothing)
    declare_all(shop)
    due_at = overdue(shop, "report", 1)
    results = at_once(20, lambda: begin(shop))
    assert sum(len(result) for result in results if isinstance(result, list)) == 1
    assert {type(result) for result in results} <= {list, Raced}
    (task,) = tasks_of(shop, "report")
    assert (task.status, task.available_at) == (TaskStatus.PENDING, due_at)
    assert task.idempotency_key == f"schedule:report:{due_at.replace(tzinfo=None).isoformat()}Z"
    schedule = schedule_of(shop, "report")
    assert (schedule.task_id, schedule.last_scheduled_at, schedule.next_at) == (task.id, due_at, due_at + HOUR)


def test_a_row_that_was_moved_in_between_is_left_alone(shop: Shop) -> None:
    """On a database without row locks too: who read the row before another moved it on writes nothing."""
    shop.engine.schedule("report", FixedRate("1h"))(nothing)
    declare_all(shop)
    overdue(shop, "report", 1)
    with shop.outside.connect() as connection:
        before = schedules.get(connection, shop.dialect.tables, "report")
    assert before is not None
    begin(shop)
    with own_transaction(shop) as connection:
        assert not schedules.advance(connection, shop.dialect.tables, before, next_at=None)


def test_no_occurrence_while_the_last_has_not_ended(shop: Shop) -> None:
    """However late it is, the next occurrence waits; when the last one has ended, it begins."""
    shop.engine.schedule("report", FixedRate("1s"))(nothing)
    declare_all(shop)
    overdue(shop, "report", 1)
    begin(shop)
    for _ in range(3):
        overdue(shop, "report", 3600)
        assert begin(shop) == []
    (task,) = tasks_of(shop, "report")
    with shop.app.app_context():
        shop.engine.cancel(task.id)
        shop.db.session.commit()
    with own_transaction(shop) as connection:
        free(connection, shop.dialect, "report")
    assert len(begin(shop)) == 1
    assert len(tasks_of(shop, "report")) == 2


def test_an_occurrence_that_has_been_is_not_run_again(shop: Shop) -> None:
    """A schedule that is set back to a time it has had goes on with the time after it: the key admits one task."""
    shop.engine.schedule("report", FixedRate("1h"))(nothing)
    declare_all(shop)
    due_at = overdue(shop, "report", 1)
    begin(shop)
    shop.sql("UPDATE taskengine_task SET status = 'SUCCEEDED', finished_at = created_at")
    set_row(shop, "report", next_at=due_at, task_id=None)
    (begun,) = begin(shop)
    assert begun.enqueued is None
    assert len(tasks_of(shop, "report")) == 1
    assert schedule_of(shop, "report").next_at == due_at + HOUR
    assert schedule_of(shop, "report").task_id is None


def test_many_schedules_that_are_due_at_once(shop: Shop) -> None:
    """Hundreds begin in few rounds, each once, with their own payload and priority."""
    shop.engine.task("bill")(lambda payload: None)
    with shop.app.app_context():
        for number in range(250):
            shop.engine.schedules.create(f"bill-{number}", Cron("0 3 * * *"), "bill", {"customer": number}, priority=number % 7)
        shop.db.session.commit()
    shop.sql("UPDATE taskengine_schedule SET next_at = created_at")
    while begin(shop):
        pass
    tasks = tasks_of(shop, "bill")
    assert sorted(task.payload["customer"] for task in tasks) == list(range(250))
    assert all(task.priority == task.payload["customer"] % 7 for task in tasks)


def test_a_schedule_that_can_not_be_read_stops_no_other(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """What a newer version has written does not run here, and says so; the others do."""
    for name in ("new", "old"):
        shop.engine.schedule(name, FixedRate("1h"))(nothing)
    declare_all(shop)
    overdue(shop, "new", 2)
    overdue(shop, "old", 1)
    set_row(shop, "new", definition='{"timing": {"kind": "moon"}}')
    assert [begun.row.name for begun in begin(shop)] == ["old"]
    assert "newer version" in caplog.text
    assert schedule_of(shop, "new").definition is None
    assert [schedule.name for schedule in act(shop, "list")] == ["new", "old"]


# --- what was missed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [-1]),
        ({"misfire": "skip"}, []),
        ({"misfire": "all"}, [-5, -4, -3, -2, -1]),
        ({"misfire": "all", "misfire_limit": 3}, [-3, -2, -1]),
    ],
)
def test_r19_occurrences_that_were_missed_while_no_worker_ran(shop: Shop, options: dict[str, Any], expected: list[int]) -> None:
    """Once makes up for all with the last, skip leaves them out, all runs each of the last ones; then it goes on as planned."""
    shop.engine.schedule("report", FixedRate("1h"), misfire_grace="1m", **options)(nothing)
    declare_all(shop)
    next_regular = overdue(shop, "report", 4.5 * 3600) + 5 * HOUR
    while begin(shop):
        shop.sql("UPDATE taskengine_task SET status = 'SUCCEEDED', finished_at = created_at WHERE finished_at IS NULL")
        with own_transaction(shop) as connection:
            free(connection, shop.dialect, "report")
    assert [task.available_at for task in tasks_of(shop, "report")] == [next_regular + number * HOUR for number in expected]
    assert schedule_of(shop, "report").next_at == next_regular


@pytest.mark.parametrize("timing", [FixedDelay("10m"), Dynamic("10m")])
def test_a_missed_time_without_a_grid(shop: Shop, timing: Timing) -> None:
    """It runs once, late; with skip it is left out and the wait begins again."""
    shop.engine.schedule("late", timing)(nothing)
    shop.engine.schedule("skipped", timing, misfire="skip")(nothing)
    declare_all(shop)
    for name in ("late", "skipped"):
        overdue(shop, name, 3600)
    begin(shop)
    assert [task.type for task in shop.tasks()] == ["late"]
    assert schedule_of(shop, "late").next_at is None
    wait = schedule_of(shop, "skipped").next_at - database_now(shop)  # type: ignore[operator]
    assert timedelta(minutes=9) < wait <= timedelta(minutes=10)


# --- a new version of the app ---------------------------------------------------------------------------------------------


def declared(shop: Shop, timing: Timing, node: str | None, **options: Any) -> None:
    """Write a version of the schedule ``nightly``, as a node does whose code has it."""
    definition = Definition(timing, **options)
    with own_transaction(shop) as connection:
        declare(connection, shop.dialect, {"nightly": Declared("nightly", definition, "here")}, node, 60)


def alive(shop: Shop, *names: str) -> None:
    """Let these nodes, and no others, be alive."""
    row = {"label": "n", "host": "h", "pid": 1, "version": "1", "concurrency": 1, "types": ["nightly"], "limits": {}}
    with shop.outside.begin() as connection:
        connection.execute(sa.delete(shop.dialect.tables.node))
        for name in names:
            nodes.register(connection, shop.dialect.tables, {"id": name} | row)


THREE, FOUR, FIVE = (Cron(f"0 {hour} * * *") for hour in (3, 4, 5))


def timing_of(shop: Shop) -> Timing:
    """Return the timing that holds."""
    definition = schedule_of(shop, "nightly").definition
    assert definition is not None
    return definition.timing


def test_a_changed_expression_plans_anew(shop: Shop) -> None:
    """The row follows the code at the start of a worker; its history stays."""
    declared(shop, THREE, None)
    set_row(shop, "nightly", runs=7, successes=6, state='{"page": 3}')
    declared(shop, FOUR, None)
    schedule = schedule_of(shop, "nightly")
    assert schedule.next_at == FOUR.after(database_now(shop))
    assert (schedule.runs, schedule.successes, schedule.state) == (7, 6, {"page": 3})


def test_another_failure_setting_leaves_the_next_time_alone(shop: Shop) -> None:
    """Only a new timing plans anew."""
    declared(shop, FixedRate("1h"), None)
    soon = database_now(shop).replace(microsecond=0) + timedelta(minutes=3)
    set_row(shop, "nightly", next_at=soon)
    declared(shop, FixedRate("1h"), None, on_failure=Backoff.fixed("1m"), misfire=Misfire("skip"))
    assert schedule_of(shop, "nightly").next_at == soon


def test_the_same_declaration_again_writes_nothing(shop: Shop) -> None:
    """A worker that starts, and every one that looks again, leaves the row as it is."""
    alive(shop, "a")
    declared(shop, THREE, "a")
    before = shop.sql("SELECT * FROM taskengine_schedule")
    declared(shop, THREE, "a")
    alive(shop, "a", "b")
    declared(shop, THREE, "b")
    assert shop.sql("SELECT * FROM taskengine_schedule") == before


def test_an_occurrence_that_runs_while_the_timing_changes_is_kept(shop: Shop) -> None:
    """It ends by itself, and what follows is planned by the new timing."""
    shop.engine.schedule("nightly", FixedRate("1h"))(nothing)
    declare_all(shop)
    overdue(shop, "nightly", 1)
    begin(shop)
    declared(shop, FixedDelay("5m"), None)
    schedule = schedule_of(shop, "nightly")
    assert (schedule.task_id, schedule.next_at) == (tasks_of(shop, "nightly")[0].id, None)


def test_r19_two_versions_side_by_side_do_not_fight(shop: Shop) -> None:
    """The newest holds while a node lives that declares it: an old one that is restarted in between leaves it alone."""
    alive(shop, "old-1", "old-2")
    declared(shop, THREE, "old-1")
    alive(shop, "old-1", "old-2", "new-1")
    declared(shop, FOUR, "new-1")
    for restarted in ("old-2", "old-3"):
        alive(shop, "old-1", restarted, "new-1")
        declared(shop, THREE, restarted)
        assert timing_of(shop) == FOUR
    # The node that declared it goes, another of its version is there and says so.
    alive(shop, "old-1", "new-2")
    declared(shop, FOUR, "new-2")
    declared(shop, THREE, "old-1")
    assert timing_of(shop) == FOUR


def test_a_rollback_takes_over_when_the_newer_version_is_gone(shop: Shop) -> None:
    """As long as one of its nodes lives the newer definition holds; after that the older one comes back by itself."""
    alive(shop, "old", "new")
    declared(shop, THREE, "old")
    declared(shop, FOUR, "new")
    declared(shop, THREE, "old")
    assert timing_of(shop) == FOUR
    alive(shop, "old")
    declared(shop, THREE, "old")
    assert timing_of(shop) == THREE
    # And what was rolled back may be deployed again.
    alive(shop, "old", "newer")
    declared(shop, FIVE, "newer")
    assert timing_of(shop) == FIVE


def test_fifty_nodes_of_two_versions(shop: Shop) -> None:
    """Whatever the order in which they start together, they agree, nobody fails, and a second look changes nothing."""
    alive(shop, *(f"node-{number}" for number in range(50)))
    declared(shop, THREE, "node-0")
    numbers = iter(range(50))

    def start() -> None:
        number = next(numbers)
        declared(shop, THREE if number % 2 else FOUR, f"node-{number}")

    assert at_once(50, start) == [None] * 50
    assert timing_of(shop) == FOUR
    for number in range(50):
        declared(shop, THREE if number % 2 else FOUR, f"node-{number}")
        assert timing_of(shop) == FOUR


def test_the_name_of_a_stored_schedule_is_refused(shop: Shop) -> None:
    """A schedule of the code never takes over one that somebody has stored; the worker says so."""
    shop.engine.task("bill")(lambda payload: None)
    act(shop, "create", "nightly", FixedRate("1h"), "bill")
    with own_transaction(shop) as connection:
        told = declare(connection, shop.dialect, {"nightly": Declared("nightly", Definition(THREE), "shop.py:7")}, None, 60)
    assert len(told) == 1
    assert "shop.py:7" in told[0]
    assert schedule_of(shop, "nightly").stored

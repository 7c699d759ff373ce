"""What people and code do to schedules: store, change, remove, run, move, pause, resume and look."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import (
    Backoff,
    ConfigError,
    Cron,
    DuplicateTypeError,
    Dynamic,
    FixedDelay,
    FixedRate,
    InvalidArgument,
    PayloadError,
    RetryPolicy,
    ScheduleConflict,
    ScheduleNotFound,
    TaskContext,
    TaskStatus,
)
from flask_taskengine.store import nodes
from tests.support.schedules import (
    act,
    begin,
    database_now,
    declare_all,
    overdue,
    schedule_of,
    set_row,
    tasks_of,
    wait_for_runs,
)
from tests.support.shop import Events, Shop
from tests.support.shop_fixtures import RunWorker
from tests.support.waiting import wait_until

NIGHTLY = Cron("0 3 * * *", timezone="Europe/Berlin")
HOUR = timedelta(hours=1)


def nothing() -> None:
    """Do nothing."""


def fail() -> None:
    """Fail."""
    raise ValueError("no")


@dataclass
class Bill:
    """The payload of a bill."""

    customer: int
    copies: int = 1


@pytest.fixture
def bills(shop: Shop) -> list[Bill]:
    """Give the shop a task type for bills, and return those it has written."""
    written: list[Bill] = []

    @shop.engine.task("bill", retry=RetryPolicy(max_attempts=3, base_backoff=0.02, jitter=0))
    def bill(payload: Bill) -> None:
        written.append(payload)
        if payload.copies < 1:
            raise ValueError("no copies")

    return written


# --- in the code --------------------------------------------------------------------------------------------------------------


def test_a_decorated_function_stays_what_it_is(shop: Shop) -> None:
    """It can be called, and be put on a schedule without a decorator, also on two."""

    @shop.engine.schedule("nightly", NIGHTLY, on_failure=Backoff.geometric("1m", max_attempts=5))
    def nightly(context: TaskContext | None = None) -> str:
        return "done"

    assert nightly() == "done"
    assert shop.engine.schedule("sweep", FixedDelay("10m"))(nothing) is nothing
    assert shop.engine.schedule("sweep-fast", FixedRate("1h"))(nothing) is nothing
    assert [schedule.name for schedule in act(shop, "list")] == ["nightly", "sweep", "sweep-fast"]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("nightly", "0 3 * * *"), {}, InvalidArgument),
        (("nightly", NIGHTLY), {"on_failure": 3}, InvalidArgument),
        (("nightly", NIGHTLY), {"misfire": "maybe"}, InvalidArgument),
        (("nightly", NIGHTLY), {"misfire_grace": "soon"}, InvalidArgument),
        (("nightly", NIGHTLY), {"priority": "high"}, InvalidArgument),
        (("nightly", NIGHTLY), {"timeout": "0s"}, ConfigError),
        (("nightly", NIGHTLY), {"retry": RetryPolicy()}, TypeError),
        ((" nightly", NIGHTLY), {}, ConfigError),
        (("a" * 201, NIGHTLY), {}, ConfigError),
        (("taken", NIGHTLY), {}, DuplicateTypeError),
    ],
)
def test_what_is_wrong_is_an_error_at_once(shop: Shop, arguments: Any, options: Any, error: type[Exception]) -> None:
    """Before any worker starts."""
    shop.engine.task("taken")(lambda payload: None)
    with pytest.raises(error):
        shop.engine.schedule(*arguments, **options)(nothing)
    assert shop.engine.schedules.declared == {}


def test_a_handler_that_takes_more_than_the_context_is_refused(shop: Shop) -> None:
    """Nobody could give it the rest."""
    with pytest.raises(ConfigError):
        shop.engine.schedule("nightly", NIGHTLY)(lambda payload, context, more: None)


# --- stored -------------------------------------------------------------------------------------------------------------------


def test_r19_a_stored_schedule_enqueues_its_type_with_its_payload(shop: Shop, bills: list[Bill], run_worker: RunWorker) -> None:
    """One for each customer, say; the payload is checked when it is stored."""
    for customer in (1, 2):
        act(shop, "create", f"bill:{customer}", FixedRate("50ms"), "bill", Bill(customer, copies=customer))
    run_worker(shop)
    for customer in (1, 2):
        wait_for_runs(shop, f"bill:{customer}", 2)
    assert {(bill.customer, bill.copies) for bill in bills} == {(1, 1), (2, 2)}
    schedule = schedule_of(shop, "bill:1")
    assert (schedule.type, schedule.stored, schedule.payload) == ("bill", True, {"customer": 1, "copies": 1})


def test_a_stored_schedule_is_retried_as_its_type_says(shop: Shop, bills: list[Bill], run_worker: RunWorker) -> None:
    """Unless it has a setting of its own."""
    act(shop, "create", "type", FixedRate("1h"), "bill", {"customer": 1, "copies": 0})
    act(shop, "create", "own", FixedRate("1h"), "bill", {"customer": 2, "copies": 0}, on_failure=Backoff.none())
    run_worker(shop)
    attempts = {name: shop.wait_for(act(shop, "run_now", name).id).attempts for name in ("type", "own")}
    assert attempts == {"type": 3, "own": 1}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("x", FixedRate("1h"), "unknown"), InvalidArgument),
        (("x", FixedRate("1h"), "bill", {"customer": "many"}), PayloadError),
        (("x", FixedRate("1h"), "bill"), PayloadError),
        (("x", "1h", "bill", {"customer": 1}), InvalidArgument),
        (("", FixedRate("1h"), "bill", {"customer": 1}), InvalidArgument),
        (("taken", FixedRate("1h"), "bill", {"customer": 1}), ScheduleConflict),
        (("code", FixedRate("1h"), "bill", {"customer": 1}), ScheduleConflict),
        (("x", Dynamic("1h", next_run=lambda context: None), "bill", {"customer": 1}), InvalidArgument),
    ],
)
def test_a_schedule_that_can_not_be_stored(shop: Shop, bills: list[Bill], arguments: Any, error: type[Exception]) -> None:
    """An unknown type, a wrong payload or a name that is taken is an error, and nothing is written."""
    shop.engine.schedule("code", FixedRate("1h"))(nothing)
    act(shop, "create", "taken", FixedRate("1h"), "bill", {"customer": 7})
    with pytest.raises(error):
        act(shop, "create", *arguments)
    assert [schedule.name for schedule in act(shop, "list") if schedule.stored] == ["taken"]
    assert schedule_of(shop, "taken").payload == {"customer": 7, "copies": 1}


def test_verbs_belong_to_the_callers_transaction(shop: Shop, bills: list[Bill]) -> None:
    """None commits: a rollback takes each back, and a name that is taken leaves the transaction usable."""
    act(shop, "create", "kept", FixedRate("1h"), "bill", {"customer": 1})
    before = shop.sql("SELECT name, next_at, paused_at, task_id, definition FROM taskengine_schedule")
    with shop.app.app_context():
        verbs = shop.engine.schedules
        verbs.create("lost", FixedRate("1h"), "bill", {"customer": 2})
        with pytest.raises(ScheduleConflict):
            verbs.create("kept", FixedRate("1h"), "bill", {"customer": 2})
        assert verbs.get("lost").payload == {"customer": 2, "copies": 1}
        verbs.change("kept", schedule=FixedRate("2h"))
        verbs.run_now("kept")
        verbs.pause("kept")
        verbs.resume("kept")
        verbs.reschedule("kept", "3h")
        verbs.remove("lost")
        shop.db.session.rollback()
    assert shop.sql("SELECT name, next_at, paused_at, task_id, definition FROM taskengine_schedule") == before
    assert shop.tasks() == []


def test_another_connection_may_be_given(shop: Shop, bills: list[Bill]) -> None:
    """Every verb takes ``session``; reading works without an app context's session too."""
    with shop.app.app_context(), shop.outside.begin() as connection:
        shop.engine.schedules.create("mine", FixedRate("1h"), "bill", {"customer": 1}, session=connection)
        shop.engine.schedules.pause("mine", session=connection)
    assert schedule_of(shop, "mine").status == "paused"


def test_a_change_keeps_what_is_not_given(shop: Shop, bills: list[Bill]) -> None:
    """Only a new timing plans anew."""
    options: Any = {"on_failure": Backoff.fixed("1m"), "misfire": "all", "misfire_grace": "5s", "misfire_limit": 7, "priority": 3}
    act(shop, "create", "bill:1", FixedRate("1h"), "bill", {"customer": 1}, **options)
    before = schedule_of(shop, "bill:1")
    changed = act(shop, "change", "bill:1", payload={"customer": 2}, misfire="skip")
    assert (changed.payload, changed.next_at) == ({"customer": 2, "copies": 1}, before.next_at)
    assert changed.definition is not None
    assert before.definition is not None
    assert (changed.definition.on_failure, changed.definition.priority) == (before.definition.on_failure, 3)
    assert (changed.definition.misfire.policy, changed.definition.misfire.grace, changed.definition.misfire.most) == ("skip", 5, 7)
    changed = act(shop, "change", "bill:1", schedule=NIGHTLY)
    assert changed.next_at == NIGHTLY.after(database_now(shop))
    assert changed.payload == {"customer": 2, "copies": 1}
    assert act(shop, "change", "bill:1", on_failure=None).definition.on_failure is None
    for wrong in ({"schedule": "1h"}, {"misfire": "x"}, {"payload": {"customer": "x"}}):
        with pytest.raises((InvalidArgument, PayloadError)):
            act(shop, "change", "bill:1", **wrong)
    with pytest.raises(TypeError, match="colour"):
        act(shop, "change", "bill:1", colour="red")


def test_a_schedule_of_the_code_is_changed_in_the_code(shop: Shop) -> None:
    """Neither changed nor removed by a verb: the error says what can be done."""
    shop.engine.schedule("nightly", NIGHTLY)(nothing)
    declare_all(shop)
    with pytest.raises(ScheduleConflict, match="in the code"):
        act(shop, "change", "nightly", schedule=FixedRate("1h"))
    with pytest.raises(ScheduleConflict, match="in the code"):
        act(shop, "remove", "nightly")


def test_removing_a_schedule_cancels_what_waits_and_lets_run_what_runs(shop: Shop, bills: list[Bill], run_worker: RunWorker) -> None:
    """Nothing of it begins any more."""
    act(shop, "create", "waits", FixedRate("1h"), "bill", {"customer": 1})
    overdue(shop, "waits", 1)
    begin(shop)
    act(shop, "remove", "waits")
    assert [task.status for task in shop.tasks()] == [TaskStatus.CANCELLED]
    with pytest.raises(ScheduleNotFound):
        schedule_of(shop, "waits")

    inside, go_on = threading.Event(), threading.Event()

    @shop.engine.task("long")
    def long(payload: Any) -> None:
        inside.set()
        assert go_on.wait(20)

    act(shop, "create", "runs", FixedRate("1h"), "long")
    run_worker(shop)
    task_id = act(shop, "run_now", "runs").id
    assert inside.wait(10)
    act(shop, "remove", "runs")
    go_on.set()
    assert shop.wait_for(task_id).status is TaskStatus.SUCCEEDED


# --- orphans ------------------------------------------------------------------------------------------------------------------


def test_a_schedule_that_has_left_the_code_is_shown_runs_no_more_and_can_be_removed(shop: Shop, run_worker: RunWorker) -> None:
    """Also where a task type has its name now."""
    shop.engine.schedule("gone", FixedRate("50ms"))(nothing)
    declare_all(shop)
    shop.engine.schedules.declared.clear()
    overdue(shop, "gone", 60)
    shop.engine.schedule("other", FixedRate("50ms"))(nothing)
    worker = run_worker(shop)
    wait_for_runs(shop, "other", 2)
    worker.stop(5)
    assert tasks_of(shop, "gone") == []
    shop.engine.registry._processors.pop("gone")
    shop.sql("DELETE FROM taskengine_node")
    assert schedule_of(shop, "gone").status == "orphaned"
    with pytest.raises(ScheduleConflict, match="no code knows it"):
        act(shop, "run_now", "gone")
    act(shop, "remove", "gone")
    assert [schedule.name for schedule in act(shop, "list")] == ["other"]


def test_a_schedule_of_a_node_that_lives_is_no_orphan(shop: Shop) -> None:
    """During a rolling deploy an app without it sees that another version still runs it, and does not remove it."""
    shop.engine.schedule("gone", FixedRate("1h"))(nothing)
    declare_all(shop)
    shop.engine.schedules.declared.clear()
    shop.engine.registry._processors.clear()
    row = {"label": "n", "host": "h", "pid": 1, "version": "1", "concurrency": 1, "types": ["gone"], "limits": {}}
    with shop.outside.begin() as connection:
        nodes.register(connection, shop.dialect.tables, {"id": "old"} | row)
    assert schedule_of(shop, "gone").status == "waiting"
    with pytest.raises(ScheduleConflict, match="a node that runs"):
        act(shop, "remove", "gone")


def test_a_stored_schedule_whose_type_nobody_knows_is_an_orphan(shop: Shop, bills: list[Bill]) -> None:
    """It waits for a node that knows its type."""
    act(shop, "create", "bill:1", FixedRate("1h"), "bill", {"customer": 1})
    shop.engine.registry._processors.clear()
    assert schedule_of(shop, "bill:1").status == "orphaned"
    overdue(shop, "bill:1", 60)
    assert begin(shop) == []


# --- run, move, pause -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timing", [NIGHTLY, FixedRate("1h"), FixedDelay("1h"), Dynamic("1h")])
def test_r19_a_run_by_hand_moves_no_regular_time(shop: Shop, run_worker: RunWorker, events: Events, timing: Any) -> None:
    """It begins at once, is announced like any enqueue, and the next regular time stays what it was."""
    shop.engine.schedule("report", timing)(nothing)
    declare_all(shop)
    before = schedule_of(shop, "report").next_at
    made = act(shop, "run_now", "report")
    assert made.created
    assert {"task_id": made.id, "task_type": "report"} in events.of("task_enqueued")
    run_worker(shop)
    assert shop.wait_for(made.id).status is TaskStatus.SUCCEEDED
    schedule = wait_for_runs(shop, "report", 1)
    assert (schedule.next_at, schedule.runs, schedule.task_id) == (before, 1, None)


@pytest.mark.parametrize("timing", [FixedRate("1h"), FixedDelay("1h")])
def test_a_run_by_hand_moves_the_next_time_where_asked(shop: Shop, run_worker: RunWorker, timing: Any) -> None:
    """As if it were a regular one."""
    shop.engine.schedule("report", timing)(nothing)
    declare_all(shop)
    set_row(shop, "report", next_at=database_now(shop) + timedelta(minutes=1))
    run_worker(shop)
    shop.wait_for(act(shop, "run_now", "report", move_next=True).id)
    schedule = wait_for_runs(shop, "report", 1)
    assert schedule.last_scheduled_at is not None
    counted_from = schedule.last_scheduled_at if isinstance(timing, FixedRate) else schedule.last_ended_at
    assert schedule.next_at == counted_from + HOUR  # type: ignore[operator]


def test_a_paused_schedule_can_be_run_by_hand(shop: Shop, run_worker: RunWorker) -> None:
    """And stays paused."""
    shop.engine.schedule("report", FixedRate("20ms"))(nothing)
    act(shop, "pause", "report")
    run_worker(shop)
    shop.wait_for(act(shop, "run_now", "report").id)
    schedule = wait_for_runs(shop, "report", 1)
    assert (schedule.status, schedule.runs) == ("paused", 1)


def test_a_run_by_hand_follows_the_one_that_runs(shop: Shop, run_worker: RunWorker) -> None:
    """However often it is asked for: one more run, after the first has ended."""
    inside, go_on = threading.Event(), threading.Event()

    @shop.engine.schedule("report", NIGHTLY)
    def report() -> None:
        inside.set()
        assert go_on.wait(20)

    run_worker(shop)
    first = act(shop, "run_now", "report")
    assert inside.wait(10)
    for _ in range(3):
        again = act(shop, "run_now", "report")
        assert (again.id, again.created) == (first.id, False)
    assert len(shop.tasks()) == 1
    go_on.set()
    wait_for_runs(shop, "report", 2)
    earlier, later = shop.tasks()
    assert shop.wait_for(later.id).claimed_at >= earlier.finished_at  # type: ignore[operator]
    assert schedule_of(shop, "report").next_at == NIGHTLY.after(database_now(shop))


def test_a_run_by_hand_brings_a_retry_forward(shop: Shop, run_worker: RunWorker) -> None:
    """An occurrence that waits for its retry runs now."""
    runs: list[int] = []

    @shop.engine.schedule("report", NIGHTLY, on_failure=Backoff.fixed("1m"))
    def report(context: TaskContext) -> None:
        runs.append(context.attempt)
        if len(runs) == 1:
            raise ValueError("no")

    run_worker(shop)
    first = act(shop, "run_now", "report")
    wait_until(lambda: shop.task(first.id).attempts == 1 and shop.task(first.id).status is TaskStatus.PENDING)
    again = act(shop, "run_now", "report")
    assert (again.id, again.created) == (first.id, False)
    assert shop.wait_for(first.id).status is TaskStatus.SUCCEEDED
    assert runs == [1, 2]


def test_a_new_time(shop: Shop, run_worker: RunWorker) -> None:
    """A moment or a wait; the times after it follow from it, and a worker that sleeps learns of it."""
    shop.engine.schedule("report", FixedRate("1h"))(nothing)
    when = datetime(2031, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
    assert act(shop, "reschedule", "report", when).next_at == when
    assert act(shop, "preview", "report", 2) == [when, when + HOUR]
    worker = run_worker(shop)
    wait_until(worker.scheduler.nothing_due.is_set)
    moved = act(shop, "reschedule", "report", "100ms").next_at
    assert wait_for_runs(shop, "report", 1, timeout=4).next_at == moved + HOUR
    for wrong in ("soon", when.replace(tzinfo=None), -1):
        with pytest.raises(InvalidArgument):
            act(shop, "reschedule", "report", wrong)


def test_a_paused_schedule_begins_nothing(shop: Shop, run_worker: RunWorker) -> None:
    """Resumed, it goes on with its next regular time; what would have run in between is left out."""
    timings: dict[str, Any] = {"rate": FixedRate("1h"), "cron": NIGHTLY, "delay": FixedDelay("1h")}
    for name, timing in timings.items():
        shop.engine.schedule(name, timing, misfire="all")(nothing)
    shop.engine.schedule("other", FixedRate("20ms"))(nothing)
    declare_all(shop)
    for name in ("rate", "cron", "delay"):
        act(shop, "pause", name)
        overdue(shop, name, 2.5 * 3600)
    was_due = schedule_of(shop, "rate").next_at
    assert was_due is not None
    worker = run_worker(shop)
    wait_for_runs(shop, "other", 3)
    worker.stop(5)
    assert {task.type for task in shop.tasks()} == {"other"}
    now = database_now(shop)
    assert act(shop, "resume", "rate").next_at == was_due + 3 * HOUR
    assert act(shop, "resume", "cron").next_at == NIGHTLY.after(now)
    assert abs(act(shop, "resume", "delay").next_at - now) < timedelta(seconds=10)
    assert [schedule_of(shop, name).status for name in ("rate", "cron", "delay")] == ["waiting"] * 3


def test_pausing_ends_the_retries(shop: Shop, run_worker: RunWorker) -> None:
    """What waits for its retry is cancelled; pausing again keeps the first time, resuming what runs changes nothing."""
    shop.engine.schedule("fails", FixedRate("1h"), on_failure=Backoff.fixed("1h"))(fail)
    declare_all(shop)
    overdue(shop, "fails", 0)
    run_worker(shop)
    wait_for_runs(shop, "fails", 1)
    paused = act(shop, "pause", "fails")
    assert [task.status for task in tasks_of(shop, "fails")] == [TaskStatus.CANCELLED]
    assert (paused.task_id, act(shop, "pause", "fails").paused_at) == (None, paused.paused_at)
    resumed = act(shop, "resume", "fails")
    assert act(shop, "resume", "fails") == resumed


def test_a_run_that_fails_while_its_schedule_is_paused_is_not_tried_again(shop: Shop, run_worker: RunWorker) -> None:
    """It ends by itself; the pause holds."""
    inside, go_on = threading.Event(), threading.Event()

    @shop.engine.schedule("fails", FixedRate("1h"), on_failure=Backoff.fixed("10ms"))
    def fails() -> None:
        inside.set()
        assert go_on.wait(20)
        raise ValueError("no")

    declare_all(shop)
    overdue(shop, "fails", 0)
    run_worker(shop)
    assert inside.wait(10)
    act(shop, "pause", "fails")
    go_on.set()
    wait_until(lambda: tasks_of(shop, "fails", TaskStatus.DEAD))
    assert schedule_of(shop, "fails").status == "paused"


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [("get", ()), ("preview", ()), ("remove", ()), ("run_now", ()), ("reschedule", ("1h",)), ("pause", ()), ("resume", ()), ("change", ())],
)
def test_an_unknown_name_is_an_error(shop: Shop, verb: str, arguments: Any) -> None:
    """Never silence; it names the one that was meant."""
    shop.engine.schedule("nightly-report", NIGHTLY)(nothing)
    with pytest.raises(ScheduleNotFound, match="did you mean 'nightly-report'"):
        act(shop, verb, "nightly-raport", *arguments)


def test_a_schedule_can_be_controlled_before_any_worker_has_run(shop: Shop, run_worker: RunWorker) -> None:
    """Looking at it writes nothing; what is said of it holds when the first worker starts."""
    shop.engine.schedule("report", FixedRate("20ms"))(nothing)
    assert act(shop, "get", "report").runs == 0
    assert [schedule.name for schedule in act(shop, "list")] == ["report"]
    assert len(act(shop, "preview", "report", 3)) == 3
    assert shop.sql("SELECT * FROM taskengine_schedule") == []
    act(shop, "pause", "report")
    worker = run_worker(shop)
    wait_until(worker.scheduler.nothing_due.is_set)
    assert schedule_of(shop, "report").status == "paused"
    assert shop.tasks() == []


def test_a_look_ahead(shop: Shop) -> None:
    """The next times of a cron schedule or a rate; of any other the next one, since the rest depends on how long runs take."""
    shop.engine.schedule("cron", Cron("30 2 * * *", timezone="Europe/Berlin"))(nothing)
    shop.engine.schedule("delay", FixedDelay("1h"))(nothing)
    declare_all(shop)
    set_row(shop, "cron", next_at=datetime(2027, 3, 27, 1, 30, tzinfo=UTC))
    assert act(shop, "preview", "cron", 3) == [
        datetime(2027, 3, 27, 1, 30, tzinfo=UTC),
        datetime(2027, 3, 28, 1, 0, tzinfo=UTC),
        datetime(2027, 3, 29, 0, 30, tzinfo=UTC),
    ]
    assert len(act(shop, "preview", "delay")) == 1
    assert len(act(shop, "preview", "cron")) == 20


def test_verbs_race_with_a_worker(shop: Shop, run_worker: RunWorker) -> None:
    """Pause, resume, reschedule and run while it runs all the time: nobody fails, and nothing overlaps or stands still."""
    inside: list[int] = []
    overlapped: list[int] = []

    @shop.engine.schedule("busy", FixedRate("5ms"))
    def busy(context: TaskContext) -> None:
        inside.append(context.task_id)
        if len(inside) > 1:
            overlapped.extend(inside)
        shop.db.session.execute(sa.text("SELECT 1"))
        inside.remove(context.task_id)

    declare_all(shop)
    for worker in (run_worker(shop), run_worker(shop)):
        worker.wake()
    for number in range(60):
        verb = ("pause", "run_now", "resume", "reschedule", "run_now")[number % 5]
        act(shop, verb, "busy", *(["1ms"] if verb == "reschedule" else []))
    act(shop, "resume", "busy")
    runs = schedule_of(shop, "busy").runs
    wait_for_runs(shop, "busy", runs + 3)
    assert overlapped == []

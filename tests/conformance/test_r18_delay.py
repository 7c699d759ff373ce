"""R18: tasks that are not due at once."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import time_machine

from flask_taskengine import InvalidArgument
from tests.support.shop import Shop

MOMENTS = [
    datetime(2031, 7, 1, 12, 30, 15, 250000, tzinfo=UTC),
    datetime(2031, 7, 1, 12, 30, 15, 250000, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2031, 7, 1, 12, 30, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    datetime(2031, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2031, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(9999, 12, 1, tzinfo=UTC),
]
NO_MOMENTS: list[Any] = [datetime(2031, 1, 1), date(2031, 1, 1), "2031-01-01T00:00:00Z", 1_900_000_000, None]  # noqa: DTZ001 - naive on purpose.
DURATIONS: list[tuple[Any, float]] = [
    (timedelta(minutes=5), 300),
    (90, 90),
    (0.25, 0.25),
    (0, 0),
    ("500ms", 0.5),
    ("30s", 30),
    ("5m", 300),
    ("2h", 7200),
    ("7d", 604800),
    (timedelta(days=36500), 36500 * 86400),
]
NO_DURATIONS: list[Any] = [-1, timedelta(seconds=-1), "soon", None, float("nan"), float("inf"), True, timedelta(days=40000)]


def test_r18_enqueue_at_keeps_the_moment(shop: Shop) -> None:
    """Whatever zone it is given in, the same moment comes back, in UTC."""
    with shop.app.app_context():
        for n, when in enumerate(MOMENTS):
            shop.engine.enqueue_at("report", n, when, priority=2, idempotency_key=f"k{n}", max_attempts=3)
        shop.db.session.commit()
    tasks = shop.tasks()
    assert [task.available_at for task in tasks] == [when.astimezone(UTC) for when in MOMENTS]
    assert {task.available_at.tzinfo for task in tasks} == {UTC}
    assert [(task.payload, task.idempotency_key) for task in tasks] == [(n, f"k{n}") for n in range(len(MOMENTS))]
    assert {(task.priority, task.max_attempts) for task in tasks} == {(2, 3)}


def test_r18_a_moment_is_never_rounded_down(shop: Shop) -> None:
    """A database that keeps milliseconds rounds up: no task starts before its time."""
    when = datetime(2031, 7, 1, 12, 30, 15, 250001, tzinfo=UTC)
    with shop.app.app_context():
        task_id = shop.engine.enqueue_at("report", None, when).id
        shop.db.session.commit()
    assert timedelta(0) <= shop.task(task_id).available_at - when < timedelta(milliseconds=1)


def test_r18_enqueue_at_refuses_what_is_no_moment(shop: Shop) -> None:
    """A datetime without a zone is no moment: the error says to give an aware one."""
    with shop.app.app_context():
        for when in NO_MOMENTS:
            with pytest.raises(InvalidArgument, match="give an aware datetime"):
                shop.engine.enqueue_at("report", None, when)
        shop.db.session.commit()
    assert shop.tasks() == []


def test_r18_enqueue_after_takes_every_form_of_a_duration(shop: Shop) -> None:
    """A timedelta, seconds or text: due that long after the moment at which the row was written, by the database's clock."""
    with shop.app.app_context():
        for delay, _ in DURATIONS:
            shop.engine.enqueue_after("report", None, delay, priority=1)
        shop.db.session.commit()
    waits = [(task.available_at - task.created_at).total_seconds() for task in shop.tasks()]
    assert waits == [pytest.approx(seconds, abs=0.002) for _, seconds in DURATIONS]
    assert {task.priority for task in shop.tasks()} == {1}


def test_r18_enqueue_after_refuses_what_is_no_duration(shop: Shop) -> None:
    """The error says that the delay is wrong, and nothing is written."""
    with shop.app.app_context():
        for delay in NO_DURATIONS:
            with pytest.raises(InvalidArgument, match="delay: "):
                shop.engine.enqueue_after("report", None, delay)
        shop.db.session.commit()
    assert shop.tasks() == []


@pytest.mark.parametrize("verb", ["enqueue_at", "enqueue_after"])
def test_r18_unknown_options_are_refused(shop: Shop, verb: str) -> None:
    """As Python refuses an unknown argument."""
    when: Any = datetime.now(UTC) if verb == "enqueue_at" else 1
    with shop.app.app_context(), pytest.raises(TypeError, match="unknown argument prio"):
        getattr(shop.engine, verb)("report", None, when, prio=1)


def test_r18_delays_are_by_the_databases_clock(shop: Shop) -> None:
    """The clock of this machine is half a year wrong: every time in the row is the database's all the same."""
    real = datetime.now(UTC)
    with time_machine.travel(real + timedelta(days=180)), shop.app.app_context():
        shop.engine.enqueue("now")
        shop.engine.enqueue_after("after", None, 60)
        shop.engine.enqueue_many([{"type": "now"}])
        shop.db.session.commit()
    for task in shop.tasks():
        assert abs(task.created_at - real) < timedelta(minutes=1)
        assert abs(task.available_at - task.created_at - timedelta(seconds=60 * (task.type == "after"))) < timedelta(milliseconds=2)


def test_r18_a_delay_counts_from_the_enqueue_not_from_the_begin_of_the_transaction(shop: Shop) -> None:
    """A long transaction does not shorten the delays of what it enqueues late."""
    with shop.app.app_context():
        first = shop.engine.enqueue("first")
        begun = shop.engine.get(first.id)
        assert begun is not None
        while (later := shop.engine.get(shop.engine.enqueue("again").id)) and later.created_at == begun.created_at:
            pass
        shop.db.session.rollback()
    assert later is not None
    assert later.created_at > begun.created_at
    assert later.available_at == later.created_at

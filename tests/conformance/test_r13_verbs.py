"""R13: what a person or the code may do to a task in each status."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flask_taskengine import TaskNotFound, TaskStateError, TaskStatus
from tests.support.shop import Events, Shop

NOWHERE = 4711

ALLOWED: dict[str, set[str]] = {
    "retry": {"DEAD", "FAILED", "CANCELLED"},
    "cancel": {"PENDING", "RUNNING"},
    "delete": {status.value for status in TaskStatus} - {"RUNNING"},
}
AFTER = {"retry": {"PENDING"}, "cancel": {"CANCELLED", "RUNNING"}}


def put(shop: Shop, status: str, **columns: Any) -> int:
    """Write a task of a status, as an attempt would have left it."""
    task_id = shop.enqueue("one")
    values: dict[str, Any] = {"status": status, "attempts": 1, "claims": 1, "claimed_by": "gone", "last_error": "it failed"}
    if status not in ("PENDING", "RUNNING"):
        values["finished_at"] = datetime(2026, 1, 1, tzinfo=UTC)
    if status == "CANCELLED":
        values["cancel_requested_at"] = datetime(2026, 1, 1, tzinfo=UTC)
    table = shop.dialect.tables.task
    with shop.outside.begin() as connection:
        connection.execute(table.update().where(table.c.id == task_id).values(**(values | columns)))
    return task_id


@pytest.mark.parametrize("verb", ALLOWED)
@pytest.mark.parametrize("status", TaskStatus)
def test_r13_verbs_by_status(shop: Shop, verb: str, status: TaskStatus) -> None:
    """A verb either does what it says or names the status and what would be needed, and changes nothing."""
    task_id = put(shop, status)
    before = shop.task(task_id)
    with shop.app.app_context():
        call: Callable[[int], Any] = getattr(shop.engine, verb)
        if status in ALLOWED[verb]:
            call(task_id)
            shop.db.session.commit()
            after = shop.engine.get(task_id)
            assert (after is None) is (verb == "delete")
            assert after is None or after.status in AFTER[verb]
        else:
            with pytest.raises(TaskStateError, match=f"task {task_id} is {status}: it can not be ") as caught:
                call(task_id)
            assert (caught.value.task_id, caught.value.status) == (task_id, status)
            assert all(allowed in str(caught.value) for allowed in ALLOWED[verb])
            shop.db.session.commit()
            assert shop.task(task_id) == before


@pytest.mark.parametrize("verb", ALLOWED)
def test_r13_verbs_on_no_task(shop: Shop, verb: str) -> None:
    """The error names the id and why it may be missing; the transaction goes on."""
    with shop.app.app_context():
        shop.engine.enqueue("kept")
        with pytest.raises(TaskNotFound, match=f"no task has the id {NOWHERE}: it never existed, ") as caught:
            getattr(shop.engine, verb)(NOWHERE)
        assert caught.value.task_id == NOWHERE
        shop.db.session.commit()
    assert len(shop.tasks()) == 1


# --- retry ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["DEAD", "FAILED", "CANCELLED"])
def test_r13_retry_makes_the_task_due_now(shop: Shop, status: str) -> None:
    """It waits as a new one does, keeps its history and its fencing token, and has no cancel request any more."""
    future = datetime(2031, 1, 1, tzinfo=UTC)
    task_id = put(shop, status, available_at=future, claims=5, attempts=3, max_attempts=9)
    with shop.app.app_context():
        shop.engine.retry(task_id)
        shop.db.session.commit()
    task = shop.task(task_id)
    assert (task.status, task.finished_at, task.cancel_requested_at) == ("PENDING", None, None)
    assert (task.claims, task.attempts, task.max_attempts, task.last_error) == (5, 3, 9, "it failed")
    assert abs(task.available_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert task.updated_at == task.available_at


def test_r13_retry_of_an_exhausted_task_gives_one_more_attempt(shop: Shop) -> None:
    """Where the row has its own limit it is raised by one above what was used up; ``reset_attempts`` begins anew."""
    exhausted = put(shop, "DEAD", attempts=3, max_attempts=3)
    over = put(shop, "DEAD", attempts=7, max_attempts=3)
    reset = put(shop, "DEAD", attempts=3, max_attempts=3)
    left = put(shop, "FAILED", attempts=1, max_attempts=3)
    with shop.app.app_context():
        for task_id in (exhausted, over, left):
            shop.engine.retry(task_id)
        shop.engine.retry(reset, reset_attempts=True)
        shop.db.session.commit()
    assert [(shop.task(i).attempts, shop.task(i).max_attempts) for i in (exhausted, over, reset, left)] == [(3, 4), (7, 8), (0, 3), (1, 3)]


# --- cancel ---------------------------------------------------------------------------------------------------------------


def test_r13_cancel_of_a_waiting_task_ends_it(shop: Shop) -> None:
    """Due or scheduled: CANCELLED at once, with the time of the request and of the end."""
    due, scheduled = put(shop, "PENDING"), put(shop, "PENDING", available_at=datetime(2031, 1, 1, tzinfo=UTC))
    with shop.app.app_context():
        assert shop.engine.cancel(due) is TaskStatus.CANCELLED
        assert shop.engine.cancel(scheduled) is TaskStatus.CANCELLED
        shop.db.session.commit()
    for task in shop.tasks():
        assert task.status == "CANCELLED"
        assert task.finished_at == task.cancel_requested_at == task.updated_at


def test_r13_cancel_of_a_running_task_is_a_request(shop: Shop) -> None:
    """It stays RUNNING until its handler has ended; asking again keeps the time of the first request."""
    task_id = put(shop, "RUNNING")
    with shop.app.app_context():
        assert shop.engine.cancel(task_id) is TaskStatus.RUNNING
        shop.db.session.commit()
        first = shop.task(task_id)
        assert shop.engine.cancel(task_id) is TaskStatus.RUNNING
        shop.db.session.commit()
    assert (first.status, first.finished_at) == ("RUNNING", None)
    assert first.cancel_requested_at is not None
    assert shop.task(task_id).cancel_requested_at == first.cancel_requested_at


# --- delete ---------------------------------------------------------------------------------------------------------------


def test_r13_delete_removes_the_failed_attempts_too(shop: Shop) -> None:
    """Nothing of the task is left; other tasks keep their history."""
    gone, kept = put(shop, "DEAD"), put(shop, "DEAD")
    for task_id in (gone, kept):
        shop.sql(
            "INSERT INTO taskengine_attempt (task_id, claims, attempt, error_class, message) VALUES (:id, 1, 1, 'ValueError', 'no')",
            id=task_id,
        )
    with shop.app.app_context():
        shop.engine.delete(gone)
        shop.db.session.commit()
    assert [task.id for task in shop.tasks()] == [kept]
    assert shop.attempts(gone) == []
    assert len(shop.attempts(kept)) == 1


# --- announcements --------------------------------------------------------------------------------------------------------


def test_r13_verbs_are_announced_after_the_commit(shop: Shop, events: Events) -> None:
    """A cancel and a retry by hand have their signals, with no node; what is rolled back has none."""
    pending, dead, running = put(shop, "PENDING"), put(shop, "DEAD", attempts=3), put(shop, "RUNNING")
    events.seen.clear()
    with shop.app.app_context():
        for _ in range(2):
            shop.engine.cancel(pending)
            shop.engine.retry(dead)
            shop.engine.cancel(running)
            assert events.seen == []
            shop.db.session.rollback()
        assert events.seen == []
        shop.engine.cancel(pending)
        shop.engine.retry(dead)
        shop.engine.cancel(running)
        shop.db.session.commit()
    assert events.seen == [
        ("task_cancelled", {"task_id": pending, "task_type": "one", "attempt": 1, "token": 1, "node": None, "duration": None}),
        (
            "task_requeued",
            {"task_id": dead, "task_type": "one", "attempt": 3, "token": 1, "node": None, "reason": "retry", "duration": None},
        ),
    ]

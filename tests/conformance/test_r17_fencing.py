"""R17: an attempt that no longer holds its task writes nothing: not its work, not its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from flask_taskengine import LeaseLostError, RetryPolicy, TaskContext
from flask_taskengine.domain.outcome import Ending, Raised, Returned
from flask_taskengine.engine.failures import failure_from
from flask_taskengine.runtime.completer import Ended
from flask_taskengine.runtime.worker import Worker
from tests.support.shop import Effect, Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until


class Stage:
    """A handler that waits in its middle, so that a test can take its task away."""

    def __init__(self, shop: Shop, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        self.inside, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.error: BaseException | None = None

        @shop.engine.task(name, retry=RetryPolicy(max_attempts=9, base_backoff=0))
        def handle(payload: Any) -> None:
            try:
                before()
                self.inside.set()
                assert self.go_on.wait(20)
                after()
            except BaseException as error:
                self.error = error
                raise
            finally:
                self.ended.set()


def write(shop: Shop, name: str) -> Callable[[], None]:
    """Return a function that writes an effect in the handler's session."""

    def add() -> None:
        shop.db.session.add(Effect(name=name))
        shop.db.session.flush()

    return add


def nothing() -> None:
    """Do nothing."""


def steal(shop: Shop, task_id: int) -> None:
    """Let another node claim the task, as after a lost lease."""
    assert shop.sql(
        "UPDATE taskengine_task SET claims = claims + 1, attempts = attempts + 1, claimed_by = 'thief' WHERE id = :id", id=task_id
    )


def settled(worker: Worker) -> bool:
    """Say whether the worker runs nothing and has nothing to record."""
    return worker.slots.in_use == 0 and worker.completer.waiting == 0


# --- commits of the handler's own -----------------------------------------------------------------------------------------------


def test_r17_a_commit_in_a_nested_app_context_is_fenced(shop: Shop, run_worker: RunWorker) -> None:
    """Its session is another one, but the same handler's."""

    def commit() -> None:
        with shop.app.app_context():
            shop.db.session.add(Effect(name="zombie"))
            shop.db.session.commit()

    stage = Stage(shop, "work", nothing, commit)
    worker = run_worker(shop)
    task_id = shop.enqueue("work")
    assert stage.inside.wait(10)
    steal(shop, task_id)
    stage.go_on.set()
    wait_until(lambda: settled(worker), what="the end")
    assert isinstance(stage.error, LeaseLostError)
    assert shop.effects() == []


def test_r17_commits_before_the_loss_stay(shop: Shop, run_worker: RunWorker) -> None:
    """The fence lets a commit pass while the task is held: what was committed then is at-least-once."""

    def commit() -> None:
        shop.db.session.add(Effect(name="held"))
        shop.db.session.commit()

    stage = Stage(shop, "work", commit, write(shop, "zombie"))
    worker = run_worker(shop)
    task_id = shop.enqueue("work")
    assert stage.inside.wait(10)
    steal(shop, task_id)
    stage.go_on.set()
    wait_until(lambda: settled(worker), what="the end")
    assert shop.effects() == ["held"]
    assert shop.task(task_id).claimed_by == "thief"


def test_r17_the_session_of_a_request_is_not_fenced(shop: Shop, run_worker: RunWorker) -> None:
    """Only handlers are: while one runs, requests of the same process commit as ever, and so do sessions of a handler's own."""

    def own() -> None:
        with Session(shop.db.engine) as session:
            session.add(Effect(name="own session"))
            session.commit()

    stage = Stage(shop, "work", nothing, own)
    worker = run_worker(shop)
    task_id = shop.enqueue("work")
    assert stage.inside.wait(10)
    steal(shop, task_id)
    with shop.app.app_context():
        shop.db.session.add(Effect(name="request"))
        shop.db.session.commit()
    stage.go_on.set()
    wait_until(lambda: settled(worker), what="the end")
    assert shop.effects() == ["request", "own session"]


# --- crash and repetition -------------------------------------------------------------------------------------------------------


def test_r17_a_crash_between_the_work_and_its_commit(shop: Shop, make_shop: MakeShop, run_worker: RunWorker) -> None:
    """The task runs again elsewhere and its work is there once: what the first one did after it was declared dead is void."""
    stage = Stage(shop, "work", nothing, write(shop, "by the first"))
    first = run_worker(shop, concurrency=1)
    task_id = shop.enqueue("work")
    assert stage.inside.wait(10)
    first.dispatcher.stop()
    # As the reaper does: the node is expired, its task is due again.
    shop.sql("UPDATE taskengine_node SET expired_at = CURRENT_TIMESTAMP")
    shop.sql("UPDATE taskengine_task SET status = 'PENDING' WHERE id = :id", id=task_id)
    second = make_shop()

    @second.engine.task("work")
    def work(payload: Any, context: TaskContext) -> None:
        second.db.session.add(Effect(name=f"by the second, attempt {context.attempt}, token {context.token}"))

    run_worker(second)
    assert second.wait_for(task_id).status == "SUCCEEDED"
    stage.go_on.set()
    wait_until(lambda: settled(first), what="the zombie's end")
    assert shop.effects() == ["by the second, attempt 2, token 2"]
    assert shop.task(task_id).status == "SUCCEEDED"


@pytest.mark.parametrize("change", ["stolen", "ended", "gone", "cancelled"])
def test_r17_ends_with_a_stale_token_are_refused(shop: Shop, change: str) -> None:
    """Success in a group, success alone and failure: none changes a row that is not this attempt's any more."""
    worker = shop.worker()
    worker.watchdog.start()
    shop.enqueue("work")
    with shop.outside.begin() as connection:
        connection.execute(sa.insert(worker.database.tables.node).values(NODE))
        (claimed,) = worker.database.dialect.claim(connection, "n", {"work": 1}, 1)
    match change:
        case "stolen":
            steal(shop, claimed.id)
        case "ended":
            shop.sql("UPDATE taskengine_task SET status = 'SUCCEEDED', finished_at = created_at, claims = claims + 1")
        case "gone":
            shop.sql("DELETE FROM taskengine_task")
        case "cancelled":
            shop.sql("UPDATE taskengine_task SET status = 'CANCELLED', finished_at = created_at")
    before = shop.tasks()
    dialect, tables = worker.database.dialect, worker.database.tables
    for ending in (Returned(), Raised(failure_from(ValueError("late")))):
        with shop.outside.begin() as connection:
            assert dialect.complete_many(connection, [(claimed.id, claimed.claims, None)]) == set()
            assert worker.completer.settle(connection, Ended(claimed, ending, 0.0)) is None
    assert shop.tasks() == before
    with shop.outside.connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.attempt)).scalar_one() == 0
    worker.stop()


def test_r17_recording_the_same_end_twice_changes_nothing(shop: Shop) -> None:
    """The answer to a commit may be lost: what was recorded is found to be recorded, with the same outcome."""
    worker = shop.worker()
    worker.watchdog.start()
    ids = [shop.enqueue("work", max_attempts=n) for n in (1, 2, 3)]
    with shop.outside.begin() as connection:
        connection.execute(sa.insert(worker.database.tables.node).values(NODE))
        claimed = worker.database.dialect.claim(connection, "n", {"work": 3}, 3)
    endings: list[Ending] = [Raised(failure_from(ValueError("dead"))), Raised(failure_from(ValueError("retried"))), Returned('{"a": 1}')]
    for round_number in range(2):
        for task, ending in zip(claimed, endings, strict=True):
            with shop.outside.begin() as connection:
                outcome = worker.completer.settle(connection, Ended(task, ending, 0.0))
            assert outcome is not None, round_number
    assert [shop.task(task_id).status for task_id in ids] == ["DEAD", "PENDING", "SUCCEEDED"]
    assert [len(shop.attempts(task_id)) for task_id in ids] == [1, 1, 0]
    assert shop.task(ids[2]).result == {"a": 1}
    worker.stop()


NODE = {
    "id": "n",
    "label": "n",
    "host": "h",
    "pid": 1,
    "version": "0",
    "concurrency": 1,
    "types": "[]",
    "limits": "{}",
}

"""Functions of the app that follow events, each in a transaction of its own."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from flask import current_app

from flask_taskengine import ConfigError, RetryPolicy, TaskEngine, current_task, signals
from flask_taskengine.runtime import reactions
from flask_taskengine.runtime.reactions import ReactionDecorators
from tests.support.hosts import MakeApp
from tests.support.shop import Effect, Shop
from tests.support.shop_fixtures import RunWorker, make_shop, run_worker, shop

__all__ = ["make_shop", "run_worker", "shop"]


@pytest.fixture
def dying(shop: Shop) -> Shop:
    """Give a shop in which tasks of the type ``dies`` die."""

    @shop.engine.task("dies", retry=RetryPolicy(max_attempts=1))
    def die(payload: object) -> None:
        shop.db.session.add(Effect(name="of the handler"))
        shop.db.session.flush()
        raise ValueError("no")

    return shop


def test_a_reaction_has_a_transaction_of_its_own(dying: Shop, run_worker: RunWorker) -> None:
    """It runs after the task's end has committed, in the app's context, outside of the task, and what it writes is committed."""
    seen: list[Any] = []

    @dying.engine.on_dead
    def tell(task_id: int, failure: object) -> None:
        seen.append((task_id, str(failure), dying.task(task_id).status, current_app.name, bool(current_task)))
        dying.db.session.add(Effect(name=f"dead: {task_id}"))

    task_id = dying.enqueue("dies")
    worker = run_worker(dying)
    dying.wait_for(task_id)
    worker.stop(0)
    assert seen == [(task_id, "ValueError: no", "DEAD", "host", False)]
    assert dying.effects() == [f"dead: {task_id}"]


def test_an_error_in_a_reaction_is_logged_and_rolled_back(dying: Shop, run_worker: RunWorker, caplog: pytest.LogCaptureFixture) -> None:
    """The task stays as it is, and the reactions after it run."""

    @dying.engine.on_dead
    def fail() -> None:
        dying.db.session.add(Effect(name="rolled back"))
        dying.db.session.flush()
        raise RuntimeError("of the reaction")

    @dying.engine.on_dead
    def go_on(task_type: str) -> None:
        dying.db.session.add(Effect(name=f"kept: {task_type}"))

    task_id = dying.enqueue("dies")
    worker = run_worker(dying)
    dying.wait_for(task_id)
    worker.stop(0)
    assert dying.task(task_id).last_error == "ValueError: no"
    assert dying.effects() == ["kept: dies"]
    [record] = [record for record in caplog.records if "reaction" in record.getMessage()]
    assert record.exc_info
    assert "fail" in record.getMessage()


def test_a_reaction_follows_the_commit_of_an_enqueue(shop: Shop) -> None:
    """In a web process too: after the commit, apart from the session that enqueued."""
    threads: list[threading.Thread] = []

    @shop.engine.on_enqueued
    def count(task_type: str) -> None:
        threads.append(threading.current_thread())
        shop.db.session.add(Effect(name=task_type))

    with shop.app.app_context():
        shop.engine.enqueue("one")
        shop.db.session.rollback()
        shop.engine.enqueue("two")
        assert threads == []
        shop.db.session.commit()
    assert shop.engine.reactions.settle(10)
    assert shop.effects() == ["two"]
    assert threads != [threading.current_thread()]


def test_a_reaction_works_on_the_app_that_the_event_is_of(make_app: MakeApp, sqlite_url: str, tmp_path: Any, shop: Shop) -> None:
    """With one engine for two apps, each event reaches the database of its own app."""
    other_url = f"sqlite:///{tmp_path / 'other.sqlite'}"
    outside = sa.create_engine(other_url, poolclass=sa.NullPool)
    Effect.metadata.create_all(outside)
    from flask import Flask

    other = Flask("other")
    other.config["SQLALCHEMY_DATABASE_URI"] = other_url
    shop.db.init_app(other)
    shop.engine.init_app(other)

    @shop.engine.on_enqueued
    def count(task_type: str) -> None:
        shop.db.session.add(Effect(name=task_type))

    with other.app_context():
        shop.engine.create_all()
        shop.engine.enqueue("other's")
        shop.db.session.commit()
        assert shop.engine.reactions.settle(10)
        shop.db.engine.dispose()
    assert shop.effects() == []
    with outside.connect() as connection:
        assert list(connection.execute(sa.select(Effect.name)).scalars()) == ["other's"]


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (lambda task: None, "has the parameter 'task': give a plain function that takes any of task_id, task_type, attempt, token, node"),
        (lambda task_id, /: None, "has the parameter 'task_id'"),
    ],
)
def test_a_function_that_could_never_be_called_is_refused(function: Any, fault: str) -> None:
    """At once, with the names that it may take."""
    with pytest.raises(ConfigError, match=fault):
        TaskEngine().on_dead(function)


def test_a_coroutine_function_is_refused() -> None:
    """It would never be awaited."""

    async def tell() -> None: ...

    with pytest.raises(ConfigError, match="is a coroutine function"):
        TaskEngine().on_dead(tell)


def test_parameters_with_a_default_and_all_fields(shop: Shop) -> None:
    """A parameter that no field fills keeps its default; ``**fields`` takes them all; the function stays callable."""
    seen: list[Any] = []

    @shop.engine.on_enqueued
    def some(task_type: str, channel: str = "mail") -> None:
        seen.append((task_type, channel))

    @shop.engine.on_enqueued
    def everything(**fields: object) -> None:
        seen.append(fields)

    task_id = shop.enqueue("one")
    assert shop.engine.reactions.settle(10)
    some("by hand")
    assert seen == [("one", "mail"), {"task_id": task_id, "task_type": "one"}, ("by hand", "mail")]


def test_there_is_a_decorator_for_every_signal_of_a_task_or_node() -> None:
    """They are called as the signals are."""
    named = {name.removeprefix("task_") for name in signals.declared if name.startswith(("task_", "node_"))}
    assert {name.removeprefix("on_") for name in vars(ReactionDecorators) if name.startswith("on_")} >= named


def test_what_waits_is_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A reaction that hangs does not fill the memory: later events are left out, and that is logged once."""
    monkeypatch.setattr(reactions, "MOST_WAITING", 3)
    go, began, seen = threading.Event(), threading.Event(), []

    @shop.engine.on_enqueued
    def hang(task_id: int) -> None:
        began.set()
        assert go.wait(20)
        seen.append(task_id)

    first = shop.enqueue("one")
    assert began.wait(10)
    later = [shop.enqueue("one") for _ in range(6)]
    assert not shop.engine.reactions.settle(0)
    go.set()
    assert shop.engine.reactions.settle(10)
    assert seen == [first, *later[:3]]
    assert sum("wait for reactions" in record.getMessage() for record in caplog.records) == 1


def test_a_process_that_was_forked_has_a_thread_of_its_own(shop: Shop) -> None:
    """What waits in the parent is not called twice, and the child's events are followed there."""
    called: list[int] = []

    @shop.engine.on_enqueued
    def note(task_id: int) -> None:
        called.append(task_id)

    shop.enqueue("one")
    assert shop.engine.reactions.settle(10)
    owned = shop.engine.reactions
    owned._waiting.append((shop.host, owned._functions["task_enqueued"][0], {"task_id": -1}))
    owned._pid = -1
    assert owned.settle(0)
    owned.take(shop.host, "task_enqueued", {"task_id": 7, "task_type": "one"})
    assert owned.settle(10)
    assert called[1:] == [7]
    assert owned._pid == os.getpid()


def test_no_thread_is_left(shop: Shop) -> None:
    """While there is nothing to call there is no thread."""

    @shop.engine.on_enqueued
    def note(task_id: int) -> None: ...

    for _ in range(3):
        shop.enqueue("one")
        assert shop.engine.reactions.settle(10)
        assert shop.engine.reactions._thread is None

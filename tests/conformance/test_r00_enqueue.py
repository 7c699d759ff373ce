"""R0: a task exists exactly when the caller's transaction commits."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from flask import abort
from sqlalchemy.orm import Session

from flask_taskengine import TaskStatus
from tests.support.shop import Effect, Shop
from tests.support.shop_fixtures import MakeShop


class RefusedError(Exception):
    """The business process says no."""


def buy(shop: Shop, name: str) -> int:
    """Write business data and its task in the current transaction."""
    shop.db.session.add(Effect(name=name))
    return shop.engine.enqueue("email", {"for": name}).id


def committed(shop: Shop) -> tuple[list[str], list[str]]:
    """Return what a second connection sees: the effects, and what the tasks are for."""
    return shop.effects(), [task.payload["for"] for task in shop.tasks()]


# --- commit, rollback, exception ----------------------------------------------------------------------------------------


def test_r00_a_task_is_committed_with_the_business_data(shop: Shop) -> None:
    """The id is known before the commit, nothing is visible until then, and all of it afterwards."""
    with shop.app.app_context():
        task_id = buy(shop, "order 1")
        shop.db.session.flush()
        assert committed(shop) == ([], [])
        shop.db.session.commit()
    assert committed(shop) == (["order 1"], ["order 1"])
    assert [task.id for task in shop.tasks()] == [task_id]


def test_r00_a_rollback_leaves_no_task(shop: Shop) -> None:
    """Neither the task nor the business data exist, and the next transaction starts clean."""
    with shop.app.app_context():
        buy(shop, "lost")
        shop.db.session.rollback()
        buy(shop, "kept")
        shop.db.session.commit()
    assert committed(shop) == (["kept"], ["kept"])


@pytest.mark.parametrize("propagate", [True, False])
def test_r00_an_exception_in_a_request_leaves_no_task(shop: Shop, propagate: bool) -> None:
    """A view that fails after it has enqueued leaves nothing behind; the next request is not affected."""
    shop.app.config["PROPAGATE_EXCEPTIONS"] = propagate

    @shop.app.post("/orders/<name>/<end>")
    def order(name: str, end: str) -> str:
        task_id = buy(shop, name)
        shop.db.session.flush()
        if end == "refused":
            raise RefusedError
        if end == "gone":
            abort(410)
        shop.db.session.commit()
        return str(task_id)

    client = shop.app.test_client()
    if propagate:
        with pytest.raises(RefusedError):
            client.post("/orders/one/refused")
    else:
        assert client.post("/orders/one/refused").status_code == 500
    assert client.post("/orders/two/gone").status_code == 410
    assert committed(shop) == ([], [])
    answer = client.post("/orders/three/paid")
    assert committed(shop) == (["three"], ["three"])
    assert [task.id for task in shop.tasks()] == [int(answer.text)]


def test_r00_a_request_that_forgets_to_commit_leaves_no_task(shop: Shop) -> None:
    """Nothing commits by itself at the end of a request."""
    shop.app.add_url_rule("/", view_func=lambda: str(buy(shop, "forgotten")))
    assert shop.app.test_client().get("/").status_code == 200
    assert committed(shop) == ([], [])


# --- savepoints and begin() -----------------------------------------------------------------------------------------------


def test_r00_a_released_savepoint_commits_with_its_transaction(shop: Shop) -> None:
    """What was enqueued inside a savepoint is not committed by its release, but by the transaction around it."""
    with shop.app.app_context():
        with shop.db.session.begin_nested():
            buy(shop, "inside")
        assert committed(shop) == ([], [])
        buy(shop, "after")
        shop.db.session.commit()
    assert committed(shop) == (["inside", "after"], ["inside", "after"])


def test_r00_a_released_savepoint_is_rolled_back_with_its_transaction(shop: Shop) -> None:
    """The release of a savepoint keeps nothing, also where the savepoint was the first thing in its transaction."""
    with shop.app.app_context():
        with shop.db.session.begin_nested():
            buy(shop, "inside")
        shop.db.session.rollback()
    assert committed(shop) == ([], [])


def test_r00_a_rolled_back_savepoint_takes_its_task_along(shop: Shop) -> None:
    """The tasks before and after the savepoint stay."""
    with shop.app.app_context():
        buy(shop, "before")
        with suppress(RefusedError), shop.db.session.begin_nested():
            buy(shop, "inside")
            raise RefusedError
        buy(shop, "after")
        shop.db.session.commit()
    assert committed(shop) == (["before", "after"], ["before", "after"])


def test_r00_savepoints_in_savepoints(shop: Shop) -> None:
    """A released savepoint goes with the rolled back one around it; a released one around a rolled back one stays."""
    with shop.app.app_context():
        with suppress(RefusedError), shop.db.session.begin_nested():
            with shop.db.session.begin_nested():
                buy(shop, "released in rolled back")
            raise RefusedError
        with shop.db.session.begin_nested():
            buy(shop, "released")
            with suppress(RefusedError), shop.db.session.begin_nested():
                buy(shop, "rolled back in released")
                raise RefusedError
        shop.db.session.commit()
    assert committed(shop) == (["released"], ["released"])


def test_r00_session_begin(shop: Shop) -> None:
    """``with session.begin()`` commits at its end, and an exception in it leaves nothing."""
    with shop.app.app_context():
        with shop.db.session.begin():
            buy(shop, "paid")
        with suppress(RefusedError), shop.db.session.begin():
            buy(shop, "refused")
            raise RefusedError
    assert committed(shop) == (["paid"], ["paid"])


def test_r00_after_a_failed_flush(shop: Shop) -> None:
    """A flush that fails takes the task along; after the rollback the session enqueues again."""
    with shop.app.app_context():
        buy(shop, "first")
        shop.db.session.commit()
        buy(shop, "first")
        with pytest.raises(sa.exc.IntegrityError):
            shop.db.session.flush()
        with pytest.raises(sa.exc.PendingRollbackError):
            shop.engine.enqueue("email", {"for": "too early"})
        shop.db.session.rollback()
        buy(shop, "second")
        shop.db.session.commit()
    assert committed(shop) == (["first", "second"], ["first", "second"])


def test_r00_after_a_failed_flush_inside_a_savepoint(shop: Shop) -> None:
    """Only what the savepoint holds goes with its failed flush."""
    with shop.app.app_context():
        buy(shop, "first")
        with pytest.raises(sa.exc.IntegrityError), shop.db.session.begin_nested():
            buy(shop, "first")
        shop.db.session.commit()
    assert committed(shop) == (["first"], ["first"])


# --- another session, a connection ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_r00_another_session(shop: Shop, keep: bool) -> None:
    """``session=`` takes a Session of the caller's own; ``db.session`` is not touched."""
    with shop.app.app_context(), Session(shop.db.engine) as session:
        session.add(Effect(name="own"))
        shop.engine.enqueue("email", {"for": "own"}, session=session)
        assert not shop.db.session().in_transaction()
        session.commit() if keep else session.rollback()
    assert committed(shop) == ((["own"], ["own"]) if keep else ([], []))


@pytest.mark.parametrize("keep", [True, False])
def test_r00_a_connection(shop: Shop, keep: bool) -> None:
    """``session=`` takes a Core connection too, with its savepoints."""
    with shop.app.app_context(), shop.db.engine.connect() as connection:
        connection.execute(sa.insert(Effect).values(name="core"))
        shop.engine.enqueue("email", {"for": "core"}, session=connection)
        with connection.begin_nested() as savepoint:
            shop.engine.enqueue_many([{"type": "email", "payload": {"for": "never"}, "idempotency_key": "never"}], session=connection)
            savepoint.rollback()
        connection.commit() if keep else connection.rollback()
    assert committed(shop) == ((["core"], ["core"]) if keep else ([], []))


def test_r00_a_scoped_session(shop: Shop) -> None:
    """``session=db.session`` is the same as none."""
    with shop.app.app_context():
        shop.engine.enqueue("email", {"for": "scoped"}, session=shop.db.session)
        assert shop.db.session().in_transaction()
        shop.db.session.commit()
    assert [task.type for task in shop.tasks()] == ["email"]


def test_r00_without_an_app_context_the_error_names_the_remedy(shop: Shop) -> None:
    """Outside of an app context there is no ``db.session``; a session of one's own works there too."""
    with pytest.raises(RuntimeError, match="app"):
        shop.engine.enqueue("email")
    with Session(shop.outside) as session:
        shop.engine.enqueue("email", session=session)
        session.commit()
    assert len(shop.tasks()) == 1


# --- every verb -----------------------------------------------------------------------------------------------------------

VERBS: dict[str, Callable[[Shop, dict[str, int]], Any]] = {
    "enqueue": lambda shop, ids: shop.engine.enqueue("new"),
    "enqueue with a key": lambda shop, ids: shop.engine.enqueue("new", idempotency_key="new"),
    "enqueue with a known key": lambda shop, ids: shop.engine.enqueue("new", idempotency_key="known"),
    "enqueue_at": lambda shop, ids: shop.engine.enqueue_at("new", None, datetime(2030, 1, 1, tzinfo=UTC)),
    "enqueue_after": lambda shop, ids: shop.engine.enqueue_after("new", None, 5),
    "enqueue_many": lambda shop, ids: shop.engine.enqueue_many([{"type": "new"}, {"type": "new", "idempotency_key": "k"}]),
    "get": lambda shop, ids: shop.engine.get(ids["PENDING"]),
    "retry": lambda shop, ids: shop.engine.retry(ids["DEAD"]),
    "cancel": lambda shop, ids: shop.engine.cancel(ids["PENDING"]),
    "cancel while it runs": lambda shop, ids: shop.engine.cancel(ids["RUNNING"]),
    "delete": lambda shop, ids: shop.engine.delete(ids["DEAD"]),
}


def a_task_of_each_status(shop: Shop) -> dict[str, int]:
    """Write a task of every status by hand, and return the ids."""
    now = "statement_timestamp()" if shop.is_postgresql else "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    for status in TaskStatus:
        ended = now if status not in ("PENDING", "RUNNING") else "NULL"
        shop.sql(f"INSERT INTO taskengine_task (type, status, finished_at) VALUES ('one', '{status}', {ended})")
    shop.sql("UPDATE taskengine_task SET idempotency_key = 'known' WHERE status = 'PENDING'")
    return {task.status: task.id for task in shop.tasks()}


@pytest.mark.parametrize("verb", VERBS)
def test_r00_no_verb_commits_or_connects_by_itself(make_shop: MakeShop, verb: str) -> None:
    """Every verb works on the one connection that the session holds, shows nothing before the commit and is undone by a rollback."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1})
    ids = a_task_of_each_status(shop)
    before = shop.tasks()
    with shop.app.app_context():
        shop.db.session.add(Effect(name="held"))
        shop.db.session.flush()
        VERBS[verb](shop, ids)
        assert shop.tasks() == before
        shop.db.session.rollback()
        assert shop.tasks() == before
        VERBS[verb](shop, ids)
        shop.db.session.commit()
    assert (shop.tasks() == before) == (verb in {"get", "enqueue with a known key"})


def test_r00_no_phantom_task_in_many_random_transactions(shop: Shop) -> None:
    """Whatever mixture of savepoints, rollbacks and exceptions: tasks and business data agree to the row."""
    rng = random.Random(7)
    numbers = iter(range(100_000))
    expected: list[str] = []

    def step(kept: list[str], depth: int) -> None:
        name = f"n{next(numbers)}"
        session = shop.db.session
        if depth < 3 and rng.random() < 0.5:
            inner: list[str] = []
            try:
                with session.begin_nested():
                    for _ in range(rng.randrange(3)):
                        step(inner, depth + 1)
                    if rng.random() < 0.4:
                        raise RefusedError
            except RefusedError:
                return
            kept += inner
        else:
            session.add(Effect(name=name))
            shop.engine.enqueue("email", {"for": name}, idempotency_key=name if rng.random() < 0.3 else None)
            kept.append(name)

    for _ in range(60):
        kept: list[str] = []
        with shop.app.app_context():
            for _ in range(rng.randrange(1, 4)):
                step(kept, 0)
            match rng.randrange(3):
                case 0:
                    shop.db.session.rollback()
                case 1:
                    shop.db.session.commit()
                    expected += kept
                case _:
                    pass
    effects, tasks = committed(shop)
    assert sorted(effects) == sorted(tasks) == sorted(expected)
    assert len(expected) > 20

"""R16: while a task with an idempotency key exists, no second one is written."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import KeyBusyError, TaskStatus
from tests.support.shop import Effect, Shop
from tests.support.shop_fixtures import MakeShop

KEYS = {
    "short": "k",
    "longest": "x" * 255,
    "longest of wide characters": "\U0001f40d" * 255,
    "spaces": "  a  b ",
    "a quote": "o'k\"k;--",
    "markers of parameters": "100%s %(key)s :key ? {key}",
    "umlaut composed": "ü",
    "umlaut decomposed": "u\u0308",
    "upper case": "K",
    "right to left": "مفتاح",
    "control characters": "\x01\x1f\t\n",
}


def test_r16_the_same_key_is_one_row(shop: Shop) -> None:
    """The second enqueue returns the first one's id and ``created=False``, in the same transaction and in a later one."""
    with shop.app.app_context():
        first = shop.engine.enqueue("email", {"n": 1}, idempotency_key="order 7")
        second = shop.engine.enqueue("other", {"n": 2}, priority=9, idempotency_key="order 7")
        shop.db.session.commit()
        third = shop.engine.enqueue("email", {"n": 3}, idempotency_key="order 7")
        shop.db.session.commit()
    assert first.created is True
    assert (second.id, second.created) == (third.id, third.created) == (first.id, False)
    (task,) = shop.tasks()
    assert (task.type, task.payload, task.priority) == ("email", {"n": 1}, 0)


def test_r16_the_transaction_stays_usable(shop: Shop) -> None:
    """A key that exists poisons nothing: what was written before and after it is committed."""
    shop.enqueue("email", idempotency_key="k")
    with shop.app.app_context():
        shop.db.session.add(Effect(name="before"))
        shop.db.session.flush()
        assert shop.engine.enqueue("email", idempotency_key="k").created is False
        shop.db.session.add(Effect(name="after"))
        with shop.db.session.begin_nested():
            assert shop.engine.enqueue("email", idempotency_key="k").created is False
        shop.db.session.commit()
    assert shop.effects() == ["before", "after"]
    assert len(shop.tasks()) == 1


def test_r16_tasks_without_a_key_are_never_the_same(shop: Shop) -> None:
    """Equal type and payload make two tasks."""
    with shop.app.app_context():
        made = [shop.engine.enqueue("email", {}) for _ in range(3)]
        shop.db.session.commit()
    assert len({one.id for one in made}) == 3
    assert all(one.created for one in made)


def test_r16_every_key_is_itself(shop: Shop) -> None:
    """Keys are compared as they are, character by character: no case, no white space and no unicode form is folded."""
    with shop.app.app_context():
        made = {name: shop.engine.enqueue("email", idempotency_key=key) for name, key in KEYS.items()}
        again = {name: shop.engine.enqueue("email", idempotency_key=key) for name, key in KEYS.items()}
        shop.db.session.commit()
    assert all(one.created for one in made.values())
    assert {name: (one.id, one.created) for name, one in again.items()} == {name: (one.id, False) for name, one in made.items()}
    assert [task.idempotency_key for task in shop.tasks()] == list(KEYS.values())


@pytest.mark.parametrize("status", TaskStatus)
def test_r16_a_key_blocks_in_every_status(shop: Shop, status: TaskStatus) -> None:
    """Also the key of a task that has ended: until its row is deleted, the same work is not done again."""
    task_id = shop.enqueue("email", idempotency_key="k")
    ended = "NULL" if status in ("PENDING", "RUNNING") else "created_at"
    shop.sql(f"UPDATE taskengine_task SET status = '{status}', finished_at = {ended}")
    with shop.app.app_context():
        again = shop.engine.enqueue("email", idempotency_key="k")
        shop.db.session.commit()
    assert (again.id, again.created) == (task_id, False)


def test_r16_a_key_is_free_again_after_its_row_is_deleted(shop: Shop) -> None:
    """In the deleting transaction itself, and after a rollback it is not."""
    first = shop.enqueue("email", idempotency_key="k")
    with shop.app.app_context():
        shop.engine.delete(first)
        assert shop.engine.enqueue("email", idempotency_key="k").created is True
        shop.db.session.rollback()
        assert shop.engine.enqueue("email", idempotency_key="k").id == first
        shop.engine.delete(first)
        shop.db.session.commit()
        second = shop.engine.enqueue("email", idempotency_key="k")
        shop.db.session.commit()
    assert second.created is True
    assert [task.id for task in shop.tasks()] == [second.id]


def test_r16_a_key_of_a_rolled_back_task_is_free(shop: Shop) -> None:
    """Also where only a savepoint was rolled back."""
    with shop.app.app_context():
        shop.engine.enqueue("email", idempotency_key="k")
        shop.db.session.rollback()
        with shop.db.session.begin_nested() as savepoint:
            assert shop.engine.enqueue("email", idempotency_key="k").created is True
            savepoint.rollback()
        assert shop.engine.enqueue("email", idempotency_key="k").created is True
        shop.db.session.commit()
    assert len(shop.tasks()) == 1


def test_r16_duplicates_within_one_call(shop: Shop) -> None:
    """The first one with the key is written, the others are the same task."""
    entries = [{"type": "email", "payload": n, "idempotency_key": key} for n, key in enumerate(["b", "a", "b", None, "a", None])]
    with shop.app.app_context():
        made = shop.engine.enqueue_many(entries)
        shop.db.session.commit()
    assert [one.created for one in made] == [True, True, False, True, False, True]
    assert made[2].id == made[0].id
    assert made[4].id == made[1].id
    assert {task.id: task.payload for task in shop.tasks()} == {made[0].id: 0, made[1].id: 1, made[3].id: 3, made[5].id: 5}


@pytest.mark.parametrize("processes", [8])
def test_r16_many_at_once_make_one_task(shop: Shop, processes: int) -> None:
    """Threads that enqueue the same keys at the same time and commit: one row per key, and one of them has created it."""
    keys = [f"key {n}" for n in range(10)]
    barrier = threading.Barrier(processes)
    results: list[list[Any]] = []

    def enqueue(place: int) -> None:
        mine = [] if place % 2 else keys
        with shop.app.app_context():
            barrier.wait(10)
            many = shop.engine.enqueue_many([{"type": "email", "idempotency_key": key} for key in mine or keys[::-1]])
            shop.db.session.commit()
        results.append(many if mine else many[::-1])

    threads = [threading.Thread(target=enqueue, args=(place,)) for place in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == processes
    tasks = shop.tasks()
    assert sorted(task.idempotency_key or "" for task in tasks) == keys
    for column in zip(*results, strict=True):
        assert len({one.id for one in column}) == 1
        assert [one.created for one in column].count(True) == 1


def test_r16_a_busy_database_is_one_clear_error(make_shop: MakeShop) -> None:
    """While another transaction holds the key, the caller gets KeyBusyError within a bounded time, and can go on."""
    options = {"connect_args": {"timeout": 0.1}} if "sqlite" in str(make_shop().outside.url) else {}
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS=options, TASKENGINE_SQLITE_PRAGMAS=False)
    with shop.app.app_context(), shop.outside.connect() as other:
        if shop.is_postgresql:
            shop.db.session.execute(sa.text("SET lock_timeout = '100ms'"))
        other.execute(sa.text("INSERT INTO taskengine_task (type, idempotency_key) VALUES ('email', 'k')"))
        with pytest.raises(KeyBusyError, match=r"'k': another .*transaction .* try again once that has ended") as caught:
            shop.engine.enqueue("email", idempotency_key="k")
        assert caught.value.idempotency_key == "k"
        other.rollback()
        shop.db.session.add(Effect(name="after"))
        assert shop.engine.enqueue("email", idempotency_key="k").created is True
        shop.db.session.commit()
    assert shop.effects() == ["after"]
    assert len(shop.tasks()) == 1

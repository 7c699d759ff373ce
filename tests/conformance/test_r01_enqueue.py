"""R1: tasks are rows; what enqueue writes, in how many statements, and what plain SQL may write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import Enqueued, InvalidArgument, PayloadError
from tests.support.shop import Shop, statements_of
from tests.support.shop_fixtures import MakeShop

INSERTS_BY_HAND = {
    "one": "INSERT INTO taskengine_task (type) VALUES ('by hand')",
    "with a payload": """INSERT INTO taskengine_task (type, payload) VALUES ('by hand', '{"n": [1, "é"]}')""",
    "select": "INSERT INTO taskengine_task (type) SELECT 'by hand' FROM (SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS n",
}

PAYLOADS: list[Any] = [None, "text", "", "null", '{"a": 1}', 0, 1.5, True, [], {}, [None], {"a": {"b": [1, "ü"]}}]
WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"task_type": ""}, "the task type is empty"),
    ({"task_type": " a"}, "white space"),
    ({"task_type": "x" * 256}, "has 256 characters: 255 are the most"),
    ({"task_type": "*"}, "every type"),
    ({"task_type": 7}, "is no text"),
    ({"priority": 1.5}, "priority is 1.5: give a whole number"),
    ({"priority": True}, "priority is True"),
    ({"priority": 2**31}, "from -2147483648 to 2147483647"),
    ({"max_attempts": 0}, "max_attempts is 0: give a whole number from 1"),
    ({"idempotency_key": ""}, "1 to 255 characters"),
    ({"idempotency_key": "x" * 256}, "1 to 255 characters"),
    ({"idempotency_key": "a\0b"}, "without NUL"),
    ({"idempotency_key": "\ud800"}, "idempotency_key"),
    ({"idempotency_key": 5}, "idempotency_key is 5"),
]
REFUSED_PAYLOADS: list[tuple[Any, str]] = [
    ({"a": [1, object()]}, r"a\[1\]|a\.1"),
    ({"a": "x\0y"}, "NUL"),
    ({"a": float("nan")}, "a"),
    ({"big": "x" * 2_000_000}, "TASKENGINE_MAX_PAYLOAD|bytes"),
    ({"a": "\ud800"}, "a"),
]


# --- one task -------------------------------------------------------------------------------------------------------------


def test_r01_what_a_new_task_is(shop: Shop) -> None:
    """Every column has a defined value; all times are the same moment of the database's clock, aware and in UTC."""
    with shop.app.app_context():
        made = shop.engine.enqueue("email.send", {"to": "é\U0001f40d"}, priority=-3, idempotency_key="k", max_attempts=7)
        inside = shop.engine.get(made.id)
        shop.db.session.commit()
    task = shop.task(made.id)
    assert made == Enqueued(task.id, created=True)
    assert inside == task
    assert (task.type, task.payload, task.priority, task.idempotency_key, task.max_attempts) == (
        "email.send",
        {"to": "é\U0001f40d"},
        -3,
        "k",
        7,
    )
    assert (task.status, task.attempts, task.claims) == ("PENDING", 0, 0)
    assert task.available_at == task.created_at == task.updated_at
    assert task.created_at.tzinfo is UTC
    assert abs(datetime.now(UTC) - task.created_at) < timedelta(minutes=1)
    assert {task.claimed_at, task.claimed_by, task.finished_at, task.cancel_requested_at, task.last_error, task.result} == {None}


def test_r01_a_payload_comes_back_as_it_was(shop: Shop) -> None:
    """Any JSON value; a text stays a text even where it looks like JSON, and None is SQL's NULL."""
    with shop.app.app_context():
        for payload in PAYLOADS:
            shop.engine.enqueue("any", payload)
        shop.db.session.commit()
    read = [task.payload for task in shop.tasks()]
    assert [(type(one), one) for one in read] == [(type(one), one) for one in PAYLOADS]
    nulls = [bool(is_null) for (is_null,) in shop.sql("SELECT payload IS NULL FROM taskengine_task ORDER BY id")]
    assert nulls == [payload is None for payload in PAYLOADS]


def test_r01_get_of_no_task(shop: Shop) -> None:
    """An id that does not exist is None, not an error."""
    with shop.app.app_context():
        assert shop.engine.get(1) is None


def test_r01_wrong_arguments_are_refused_before_anything_is_written(shop: Shop) -> None:
    """The error says what was given and what to give; it is a ValueError too, and the transaction is as it was."""
    with shop.app.app_context():
        shop.engine.enqueue("kept")
        for arguments, told in WRONG_ARGUMENTS:
            with pytest.raises(InvalidArgument, match=told):
                shop.engine.enqueue(**({"task_type": "a"} | arguments))
        shop.db.session.commit()
    assert [task.type for task in shop.tasks()] == ["kept"]
    assert issubclass(InvalidArgument, ValueError)


def test_r01_a_refused_payload_leaves_the_transaction_usable(shop: Shop) -> None:
    """What can not be stored is refused with its place before the database sees it; what was written before is kept."""
    with shop.app.app_context():
        shop.engine.enqueue("kept")
        for payload, told in REFUSED_PAYLOADS:
            with pytest.raises(PayloadError, match=told) as caught:
                shop.engine.enqueue("refused", payload)
            assert caught.value.faults
            with pytest.raises(PayloadError, match=told):
                shop.engine.enqueue_many([{"type": "also refused"}, {"type": "refused", "payload": payload}])
        shop.engine.enqueue("kept too")
        shop.db.session.commit()
    assert [task.type for task in shop.tasks()] == ["kept", "kept too"]


def test_r01_the_limit_of_a_payload_is_a_setting(make_shop: MakeShop) -> None:
    """TASKENGINE_MAX_PAYLOAD counts bytes of the JSON text: the largest passes, one more byte does not."""
    shop = make_shop(TASKENGINE_MAX_PAYLOAD="1KiB")
    largest = "é" * 511
    task_id = shop.enqueue("any", largest)
    assert shop.task(task_id).payload == largest
    with shop.app.app_context(), pytest.raises(PayloadError, match="bytes"):
        shop.engine.enqueue("any", largest + "x")


# --- many tasks -----------------------------------------------------------------------------------------------------------


def test_r01_enqueue_many_takes_ten_thousand_in_few_statements(shop: Shop) -> None:
    """The results stand in the order of the call, the ids rise with it, and it takes a handful of statements."""

    def rows() -> Iterator[dict[str, Any]]:
        for n in range(10_000):
            yield {"type": f"t{n % 3}", "payload": n, "priority": n % 5}

    with shop.app.app_context(), statements_of(shop.db.engine) as statements:
        made = shop.engine.enqueue_many(rows())
        shop.db.session.commit()
    assert len(statements) <= 20
    ids = [one.id for one in made]
    assert ids == sorted(ids)
    assert len(set(ids)) == 10_000
    tasks = shop.tasks()
    assert [(task.id, task.type, task.payload, task.priority) for task in tasks] == [(ids[n], f"t{n % 3}", n, n % 5) for n in range(10_000)]


def test_r01_enqueue_many_with_keys_takes_few_statements_too(shop: Shop) -> None:
    """New keys, known keys and keys that stand twice in the call: each gets its own result, and one row."""
    shop.enqueue("old", idempotency_key="key 7")
    keys = [f"key {n % 2000}" if n % 3 else None for n in range(3000)]
    with shop.app.app_context(), statements_of(shop.db.engine) as statements:
        made = shop.engine.enqueue_many([{"type": "new", "payload": n, "idempotency_key": key} for n, key in enumerate(keys)])
        shop.db.session.commit()
    assert len(statements) <= 25
    by_id = {task.id: task for task in shop.tasks()}
    assert len(by_id) == len({key for key in keys if key}) + keys.count(None)
    seen: set[str] = {"key 7"}
    for n, (one, key) in enumerate(zip(made, keys, strict=True)):
        assert by_id[one.id].idempotency_key == key
        assert one.created is (key not in seen)
        if one.created:
            assert by_id[one.id].payload == n
        if key:
            seen.add(key)


def test_r01_enqueue_many_of_nothing(shop: Shop) -> None:
    """No tasks, no statement."""
    with shop.app.app_context(), statements_of(shop.db.engine) as statements:
        assert shop.engine.enqueue_many([]) == []
        assert shop.engine.enqueue_many(iter(())) == []
        assert statements == []
        assert not shop.db.session().in_transaction()


def test_r01_enqueue_many_takes_every_key_of_the_design(shop: Shop) -> None:
    """type, payload, priority, idempotency_key, max_attempts and available_at; only the type is required."""
    when = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    full = {"type": "a", "payload": [1], "priority": 3, "idempotency_key": "k", "max_attempts": 2, "available_at": when}
    with shop.app.app_context():
        first, second = (shop.engine.get(one.id) for one in shop.engine.enqueue_many([full, {"type": "b"}]))
        shop.db.session.commit()
    assert first is not None
    assert second is not None
    assert {name: getattr(first, name) for name in full} == full
    assert (second.type, second.payload, second.priority, second.idempotency_key, second.max_attempts) == ("b", None, 0, None, None)


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ([{"type": "a"}, {"payload": 1}], r"tasks\[1\] has no type"),
        ([{"type": "a", "paylaod": 1}], r"tasks\[0\] has unknown keys paylaod: give available_at, "),
        ([{"type": "a"}, {"type": "a", "priority": "high"}], "priority is 'high'"),
        ([{"type": "a", "available_at": datetime(2031, 1, 1)}], "has no time zone"),  # noqa: DTZ001 - naive on purpose.
    ],
)
def test_r01_a_wrong_entry_writes_none_of_them(shop: Shop, tasks: list[dict[str, Any]], told: str) -> None:
    """The error names the entry; the transaction is as it was."""
    with shop.app.app_context():
        with pytest.raises(InvalidArgument, match=told):
            shop.engine.enqueue_many(tasks)
        shop.db.session.commit()
    assert shop.tasks() == []


# --- statements -----------------------------------------------------------------------------------------------------------


def test_r01_a_plain_enqueue_is_one_statement(shop: Shop) -> None:
    """Exactly one, also when it is delayed; nothing is sent at the commit."""
    with shop.app.app_context(), statements_of(shop.db.engine) as statements:
        shop.engine.enqueue("a", {"n": 1})
        assert len(statements) == 1
        shop.engine.enqueue_after("a", {"n": 1}, 5)
        shop.engine.enqueue_at("a", {"n": 1}, datetime.now(UTC))
        shop.db.session.commit()
    assert len(statements) == 3


def test_r01_enqueue_does_not_flush_the_session(shop: Shop) -> None:
    """What the caller has pending goes to the database when the caller wants it."""
    from tests.support.shop import Effect

    with shop.app.app_context(), statements_of(shop.db.engine) as statements:
        shop.db.session.add(Effect(name="pending"))
        shop.engine.enqueue("a")
        assert ["effect" in statement for statement in statements] == [False]
        shop.db.session.commit()
    assert shop.effects() == ["pending"]


# --- plain SQL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("insert", INSERTS_BY_HAND)
def test_r01_rows_by_hand_need_only_a_type(shop: Shop, insert: str) -> None:
    """INSERT with a type, with a payload and INSERT .. SELECT make tasks that equal those of enqueue."""
    shop.sql(INSERTS_BY_HAND[insert])
    by_hand = shop.tasks()
    assert len(by_hand) == (3 if insert == "select" else 1)
    task_id = shop.enqueue("by hand", by_hand[0].payload)
    enqueued = shop.task(task_id)
    for task in by_hand:
        for name in ("type", "payload", "status", "priority", "attempts", "max_attempts", "claims", "finished_at", "idempotency_key"):
            assert getattr(task, name) == getattr(enqueued, name)
        assert abs(enqueued.available_at - task.available_at) < timedelta(minutes=1)
        assert task.available_at == task.created_at == task.updated_at


def test_r01_a_payload_can_be_searched_in_sql(shop: Shop) -> None:
    """It is stored as JSON of the database (JSONB on PostgreSQL), not as a string that holds JSON."""
    shop.enqueue("a", {"order": {"id": 5}})
    path = "payload -> 'order' ->> 'id'" if shop.is_postgresql else "json_extract(payload, '$.order.id')"
    (value,) = shop.sql(f"SELECT {path} FROM taskengine_task")[0]
    assert str(value) == "5"


def test_r01_ids_are_never_used_again(shop: Shop) -> None:
    """A deleted task's id names no later task."""
    first = shop.enqueue("a")
    with shop.app.app_context():
        shop.engine.delete(first)
        shop.db.session.commit()
    assert shop.enqueue("a") > first


def test_r01_ids_pass_32_bits(shop: Shop) -> None:
    """Ids are 64-bit: an installation of many years goes on."""
    large = 2**31 + 5
    shop.sql(f"INSERT INTO taskengine_task (id, type) VALUES ({large}, 'a')")
    if shop.is_postgresql:
        shop.sql(f"SELECT setval(pg_get_serial_sequence('taskengine_task', 'id'), {large})")
    task_id = shop.enqueue("a", idempotency_key="k")
    assert task_id == large + 1
    assert shop.task(task_id).id == task_id
    with shop.app.app_context():
        assert shop.engine.enqueue("a", idempotency_key="k").id == task_id
        shop.engine.cancel(task_id)
        shop.engine.retry(task_id)
        shop.engine.delete(task_id)
        shop.db.session.commit()


def test_r01_a_stored_text_is_json(shop: Shop) -> None:
    """What stands in the column can be read by any JSON parser."""
    shop.enqueue("a", {"a": [1.5, "ü", None, True]})
    (text,) = shop.sql("SELECT CAST(payload AS text) FROM taskengine_task")[0]
    assert json.loads(text) == {"a": [1.5, "ü", None, True]}


def test_r01_a_session_in_autocommit_enqueues_too(shop: Shop) -> None:
    """Where the caller has chosen that every statement commits for itself, so does the enqueue."""
    with shop.app.app_context(), shop.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        made = shop.engine.enqueue("a", session=connection)
        assert isinstance(connection, sa.Connection)
        assert shop.task(made.id).type == "a"

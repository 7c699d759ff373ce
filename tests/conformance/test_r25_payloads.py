"""R25: what a processor gets for the payload of its row, and what becomes of a row that can not be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import marshmallow as ma
import pytest

from flask_taskengine import RetryPolicy, TaskContext, TaskProcessor, TaskStatus
from tests.support.shop import Shop
from tests.support.shop_fixtures import RunWorker
from tests.support.waiting import wait_until

ONCE = RetryPolicy(max_attempts=1)


@dataclass(frozen=True)
class Line:
    """One line of an order."""

    article: UUID
    price: Decimal


@dataclass(frozen=True)
class Order:
    """A payload with everything that has a documented form."""

    number: int
    placed_at: datetime
    lines: list[Line] = field(default_factory=list)
    note: str | None = None


class OrderSchema(ma.Schema):
    """The same in a marshmallow Schema."""

    number = ma.fields.Integer(required=True, strict=True)
    placed_at = ma.fields.AwareDateTime(required=True)


class Orders(TaskProcessor[Order]):
    """The class form: the payload's type is the class's parameter."""

    type = "orders"

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def process(self, payload: Order, context: TaskContext) -> None:
        self.seen.append(payload)


ORDER = Order(
    7,
    datetime(2031, 1, 2, 3, 4, 5, 678900, UTC),
    [Line(UUID("12345678-1234-5678-1234-567812345678"), Decimal("12.50"))],
    "grüße 🐘",
)


def test_r25_a_dataclass_arrives_as_it_was_enqueued(shop: Shop, run_worker: RunWorker) -> None:
    """A typed payload is written as JSON and handed out as an equal instance, by function and by class."""
    seen: list[Any] = []

    @shop.engine.task("order")
    def order(payload: Order) -> None:
        seen.append(payload)

    shop.engine.register(Orders(seen))
    with shop.app.app_context():
        ids = [shop.engine.enqueue("order", ORDER).id, shop.engine.enqueue("orders", ORDER).id]
        shop.db.session.commit()
    run_worker(shop, 1)
    shop.wait_for_all(ids)
    assert seen == [ORDER, ORDER]


def test_r25_a_schema_loads_the_payload(shop: Shop, run_worker: RunWorker) -> None:
    """With ``schema=`` the handler gets what the Schema loads."""
    seen: list[Any] = []

    @shop.engine.task("order", schema=OrderSchema)
    def order(payload: dict[str, Any]) -> None:
        seen.append(payload)

    task_id = shop.enqueue("order", {"number": 7, "placed_at": "2031-01-02T03:04:05+00:00"})
    run_worker(shop)
    shop.wait_for(task_id)
    assert seen == [{"number": 7, "placed_at": datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)}]


@pytest.mark.parametrize("annotation", [None, str])
def test_r25_strings_stay_strings(shop: Shop, run_worker: RunWorker, annotation: type | None) -> None:
    """A payload that is a plain string arrives as it is, also where it looks like JSON."""
    seen: list[Any] = []

    def text(payload: Any) -> None:
        seen.append(payload)

    if annotation is not None:
        text.__annotations__["payload"] = annotation
    shop.engine.task("text")(text)
    texts = ["", "plain", '{"a": 1}', "null", "7", "ä🐘\n\t\\u0000"]
    ids = [shop.enqueue("text", one) for one in texts]
    run_worker(shop, 1)
    shop.wait_for_all(ids)
    assert sorted(seen) == sorted(texts)


def test_r25_plain_json_keeps_its_kinds(shop: Shop, run_worker: RunWorker) -> None:
    """Nested JSON, large numbers and nothing at all come back as they were."""
    seen: dict[int, Any] = {}

    @shop.engine.task("json")
    def plain(payload: Any, context: TaskContext) -> None:
        seen[context.task_id] = payload

    payloads = [None, True, 0, 2**53 + 1, 1.5, [], {}, {"a": [1, {"b": None}]}, [[["x"]]]]
    ids = [shop.enqueue("json", payload) for payload in payloads]
    run_worker(shop)
    shop.wait_for_all(ids)
    assert [seen[task_id] for task_id in ids] == payloads
    assert [shop.task(task_id).payload for task_id in ids] == payloads


def test_r25_an_unreadable_payload_is_failed_with_its_faults(shop: Shop, run_worker: RunWorker) -> None:
    """A row that a person has inserted wrongly ends FAILED at once; the error names each field, and the handler is not called."""
    calls: list[Any] = []

    @shop.engine.task("order", retry=RetryPolicy(max_attempts=5))
    def order(payload: Order) -> None:
        calls.append(payload)

    @shop.engine.task("schema", schema=OrderSchema)
    def schema(payload: Any) -> None:
        calls.append(payload)

    wrong = '{"number": "seven", "lines": [{"article": 5, "price": "1.0"}]}'
    shop.sql("INSERT INTO taskengine_task (type, payload) VALUES ('order', :p), ('schema', :p), ('order', NULL)", p=wrong)
    run_worker(shop)
    ended = [shop.wait_for(task.id) for task in shop.tasks()]
    assert [(task.status, task.attempts) for task in ended] == [("FAILED", 1)] * 3
    typed, loaded, none = (task.last_error or "" for task in ended)
    for path in ("number", "placed_at", "lines[0].article"):
        assert path in typed
    assert "number" in loaded
    assert "placed_at" in loaded
    assert "needs a payload" in none
    assert calls == []
    assert [a["error_class"] for a in shop.attempts(ended[0].id)] == ["PayloadError"]


def stored(shop: Shop) -> list[str]:
    """Return texts that the database takes as JSON and that Python can not read, or not in every place."""
    deep = "[" * 3000 + "]" * 3000
    long = "1" + "0" * 5000
    return [deep, long] if shop.is_postgresql else [deep, long, "{no json", "", "'1'", '{"a":']


def test_r25_a_payload_that_can_not_be_parsed_is_failed(shop: Shop, run_worker: RunWorker) -> None:
    """A corrupt row fails by itself: the batch that it was claimed with runs, and the worker goes on (faults 104)."""
    calls: list[Any] = []

    @shop.engine.task("plain", retry=ONCE)
    def plain(payload: Any) -> None:
        calls.append(payload)

    corrupt = stored(shop)
    for text in corrupt:
        shop.sql("INSERT INTO taskengine_task (type, payload) VALUES ('plain', :p)", p=text)
    ids = [row[0] for row in shop.sql("SELECT id FROM taskengine_task ORDER BY id")]
    healthy = [shop.enqueue("plain", n) for n in range(3)]
    run_worker(shop, 16)
    shop.wait_for_all(healthy)

    def ended() -> Any:
        return shop.sql("SELECT id, status, last_error FROM taskengine_task WHERE finished_at IS NOT NULL ORDER BY id")

    wait_until(lambda: len(ended()) == len(ids) + 3, 20, lambda: f"all to end, but only {ended()} did")
    for task_id, status, error in ended()[: len(ids)]:
        assert (task_id in ids, status) == (True, TaskStatus.FAILED)
        assert "can not be read" in error
    assert sorted(calls) == [0, 1, 2]
    later = shop.enqueue("plain", 3)
    assert shop.wait_for(later).status is TaskStatus.SUCCEEDED

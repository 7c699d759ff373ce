"""What the calls of the API do, and how they refuse."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import TaskContext
from flask_taskengine.domain.schedule import FixedRate
from flask_taskengine.engine import bulk
from tests.support.shop import Shop
from tests.support.shop_fixtures import RunWorker
from tests.support.waiting import wait_until

from .conftest import Client


@dataclass
class Typed:
    """A payload."""

    n: int


def end(shop: Shop, task_id: int, status: str, error: str | None = None) -> None:
    """End a task by hand."""
    shop.sql(
        "UPDATE taskengine_task SET status = :status, finished_at = updated_at, last_error = :error, attempts = 5 WHERE id = :id",
        status=status,
        error=error,
        id=task_id,
    )


def test_r13_enqueue_by_rest(shop: Shop, api: Client) -> None:
    """201 and the task; 200 and the existing one for a key that exists; 422 names each field."""
    body = {"type": "a", "payload": {"x": [1, None]}, "priority": 3, "idempotency_key": "k", "max_attempts": 2}
    made = api.post("/tasks", json=body | {"available_at": "2031-01-01T00:00:00+02:00"})
    assert made.status_code == 201
    assert {name: made.json[name] for name in body} == body
    assert made.json["available_at"] == "2030-12-31T22:00:00Z"
    again = api.post("/tasks", json={"type": "a", "idempotency_key": "k"})
    assert (again.status_code, again.json["id"]) == (200, made.json["id"])
    wrong = api.post("/tasks", json={"type": "", "priority": "high", "nope": 1, "available_at": "2031-01-01T00:00:00"})
    assert wrong.status_code == 422
    assert wrong.mimetype == "application/problem+json"
    assert set(wrong.json["errors"]["json"]) == {"type", "priority", "nope", "available_at"}
    assert api.post("/tasks", data="{", headers={"Content-Type": "application/json"}).status_code == 400


def test_r13_a_typed_payload_is_checked(shop: Shop, api: Client) -> None:
    """What the processor can not take is refused at once, with the place."""

    @shop.engine.task("typed")
    def typed(payload: Typed) -> None: ...

    refused = api.post("/tasks", json={"type": "typed", "payload": {"n": "x"}})
    assert refused.status_code == 422
    assert "n" in str(refused.json["errors"])
    assert shop.tasks() == []


@pytest.mark.parametrize(
    ("status", "retry", "cancel", "delete"),
    [
        ("PENDING", 409, 200, 204),
        ("RUNNING", 409, 202, 409),
        ("SUCCEEDED", 409, 409, 204),
        ("FAILED", 200, 409, 204),
        ("DEAD", 200, 409, 204),
        ("CANCELLED", 200, 409, 204),
    ],
)
def test_r13_verbs_by_status_over_rest(shop: Shop, api: Client, status: str, retry: int, cancel: int, delete: int) -> None:
    """Each verb answers by the status, as documented; an unknown task is 404 everywhere."""
    ids = [shop.enqueue("a") for _ in range(3)]
    finished = "NULL" if status in ("PENDING", "RUNNING") else "updated_at"
    shop.sql(f"UPDATE taskengine_task SET status = '{status}', finished_at = {finished}, claims = 1")
    answers = [api.post(f"/tasks/{ids[0]}/retry"), api.post(f"/tasks/{ids[1]}/cancel"), api.delete(f"/tasks/{ids[2]}")]
    assert [answer.status_code for answer in answers] == [retry, cancel, delete]
    for unknown in ("999999", "0", "x", "-1", "99999999999999999999", "1%00", "..%2f..%2fetc"):
        assert api.get(f"/tasks/{unknown}").status_code == 404
        assert api.post(f"/tasks/{unknown}/retry").status_code == 404


def test_r13_lists_are_newest_first_and_go_on_by_cursor(shop: Shop, api: Client) -> None:
    """Pages by offset and by cursor show each task once; limits outside of 1 to 500 are refused."""
    ids = shop.enqueue_many(*["a"] * 7)[::-1]
    seen: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.get(f"/tasks?limit=3{f'&cursor={cursor}' if cursor else ''}").json
        seen += [task["id"] for task in page["items"]]
        cursor = page["next"]
    assert seen == ids
    assert [task["id"] for task in api.get("/tasks?limit=3&offset=2").json["items"]] == ids[2:5]
    for wrong in ("limit=0", "limit=501", "limit=x", "offset=-1", "cursor=x", "status=NOPE", "nope=1", "priority=1e99", "type="):
        assert api.get(f"/tasks?{wrong}").status_code == 422, wrong


def test_r13_lists_are_filtered(shop: Shop, api: Client) -> None:
    """By status, type, priority, key, error text, times and a value in the payload; all at once means all of it."""
    first = shop.enqueue("a", {"customer": {"id": 7, "vip": True}, "note": None}, priority=1)
    second = shop.enqueue("b", {"customer": {"id": "7"}}, idempotency_key="order-1")
    third = shop.enqueue("c", "plain")
    end(shop, third, "DEAD", "ValueError: 50% of Köln's\nrest")

    def found(query: str) -> list[int]:
        answer = api.get(f"/tasks?{query}")
        assert answer.status_code == 200, answer.text
        return [task["id"] for task in answer.json["items"]]

    assert found("status=DEAD&status=RUNNING") == [third]
    assert found("status=PENDING,DEAD") == [third, second, first]
    assert found("type=a&type=b") == [second, first]
    assert found("priority=1") == [first]
    assert found("key=order-1") == [second]
    assert found("error=50%25 OF K%C3%B6ln" if shop.is_postgresql else "error=50%25 OF K") == [third]
    assert found("error=5_%25") == []
    assert found("payload_path=customer.id&payload_value=7") == [first]
    assert found('payload_path=customer.id&payload_value="7"') == [second]
    assert found("payload_path=customer.vip&payload_value=true") == [first]
    assert found("payload_path=note&payload_value=null") == [first]
    assert found("payload_path=customer.vip&payload_value=false") == []
    assert found("created_after=2020-01-01T00:00:00Z&type=c") == [third]
    assert found("created_before=2020-01-01T00:00:00Z") == []
    assert found("finished_after=2020-01-01T00:00:00Z") == [third]
    for attack in ("' OR '1'='1", "a'; DROP TABLE taskengine_task; --", "%", "_", "\\"):
        assert api.get("/tasks", query_string={"type": attack, "error": attack, "key": attack}).json["items"] == []
        assert api.get("/tasks", query_string={"payload_path": attack, "payload_value": attack}).status_code in (200, 422)
    assert len(shop.tasks()) == 3


def test_r13_bulk_needs_a_filter_and_counts_first(shop: Shop, api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run changes nothing; an empty filter wants all=true; what runs is not deleted; batches go on until nothing is left."""
    monkeypatch.setattr(bulk, "BATCH", 2)
    ids = shop.enqueue_many(*["a"] * 5, "b")
    for task_id in ids[:4]:
        end(shop, task_id, "DEAD")
    dry = api.post("/tasks/bulk/retry", json={"filter": {"type": ["a"]}, "dry_run": True}).json
    assert (dry["count"], dry["exact"], len(dry["sample"])) == (4, True, 4)
    assert api.post("/tasks/bulk/delete", json={}).status_code == 422
    assert api.post("/tasks/bulk/retry", json={"filter": {"type": "a"}, "limit": 3}).json == {
        "count": 3,
        "exact": True,
        "more": True,
        "sample": [],
    }
    assert api.post("/tasks/bulk/retry", json={"filter": {"type": "a"}}).json["count"] == 1
    assert {task.status for task in shop.tasks()} == {"PENDING"}
    assert api.post("/tasks/bulk/cancel", json={"filter": {"type": "b"}}).json["count"] == 1
    shop.sql("UPDATE taskengine_task SET status = 'RUNNING' WHERE id = :id", id=ids[0])
    assert api.post("/tasks/bulk/delete", json={"all": True}).json["count"] == 5
    assert [task.id for task in shop.tasks()] == [ids[0]]


def test_r13_retry_dead_by_rest(shop: Shop, api: Client) -> None:
    """All DEAD tasks, or those of one type."""
    ids = shop.enqueue_many("a", "b", "b")
    for task_id in ids:
        end(shop, task_id, "DEAD")
    assert api.post("/tasks/retry-dead?type=b&reset_attempts=true").json == {"requeued": 2}
    assert [task.attempts for task in shop.tasks()] == [5, 0, 0]
    assert api.post("/tasks/retry-dead").json == {"requeued": 1}


def test_r20_dead_tasks_are_grouped_by_what_their_errors_say(shop: Shop, api: Client) -> None:
    """Numbers, ids and quoted values do not tell two errors apart; one of a group is tried first, then the rest."""
    errors = ["KeyError: 'a'", "KeyError: 'b'", "ValueError: row 17 is bad", "ValueError: row 18 is bad", "ValueError: row 18 is good"]
    ids = shop.enqueue_many(*["a"] * 5)
    for task_id, error in zip(ids, errors, strict=True):
        end(shop, task_id, "DEAD", error)
    groups = api.get("/dead-groups").json["items"]
    assert sorted(group["count"] for group in groups) == [1, 2, 2]
    rows = next(group for group in groups if "is bad" in group["error"])
    assert api.post(f"/dead-groups/{rows['fingerprint']}/retry", json={"only_first": True}).json == {"requeued": 1}
    assert shop.task(ids[3]).status == "PENDING"
    assert shop.task(ids[2]).status == "DEAD"
    assert api.post(f"/dead-groups/{rows['fingerprint']}/retry", json={}).json == {"requeued": 1}
    assert api.post("/dead-groups/unknown/retry", json={}).status_code == 404


def test_r27_a_pause_holds_everywhere_within_a_second(shop: Shop, api: Client, run_worker: RunWorker) -> None:
    """A paused type, or everything, does not begin; other types go on; once resumed it begins at once."""
    ran: list[str] = []
    for name in ("a", "b"):
        shop.engine.task(name)(lambda payload, context: ran.append(context.type))
    run_worker(shop)
    shop.wait_for(shop.enqueue("a"))
    assert api.post("/types/a/pause", json={"reason": "a bad deploy"}).status_code == 200
    held = shop.enqueue("a")
    shop.wait_for(shop.enqueue("b"))
    shown = next(one for one in api.get("/types").json["items"] if one["type"] == "a")
    assert shown["paused"]["reason"] == "a bad deploy"
    assert shown["paused"]["by"].startswith("token ")
    assert api.get(f"/tasks/{held}/why").json["code"] == "type_paused"
    assert shop.task(held).status == "PENDING"
    assert api.post("/types/a/resume").json["was_paused"] is True
    assert shop.wait_for(held, timeout=2).status == "SUCCEEDED"
    api.post("/types/*/pause", json={})
    held = shop.enqueue("b")
    assert api.get(f"/tasks/{held}/why").json["code"] == "all_paused"
    api.post("/types/*/resume")
    assert shop.wait_for(held, timeout=2).status == "SUCCEEDED"
    assert ran == ["a", "b", "a", "b"]


def test_progress_is_shown_while_the_task_runs(shop: Shop, api: Client, run_worker: RunWorker) -> None:
    """It is stored outside the handler's transaction, at most once a second, and the last word stays with the task."""
    go_on = threading.Event()

    @shop.engine.task("long")
    def work(payload: Any, context: TaskContext) -> None:
        for done in range(1000):
            context.progress(done, 1000, "half\x00way")
        assert go_on.wait(20)

    task_id = shop.enqueue("long")
    with_updates: list[str] = []
    worker = run_worker(shop)
    sa.event.listen(worker.database.engine, "before_cursor_execute", lambda c, cur, s, *_: with_updates.append(s))
    shown = wait_until(lambda: api.get(f"/tasks/{task_id}").json["progress"])
    assert shown["total"] == 1000
    assert shown["note"] == "halfway"
    assert shop.task(task_id).status == "RUNNING"
    go_on.set()
    assert shop.wait_for(task_id).status == "SUCCEEDED"
    assert len([one for one in with_updates if "progress" in one and one.startswith("UPDATE")]) <= 3


def test_schedules_by_rest(shop: Shop, api: Client) -> None:
    """They are listed with their next times, run, paused and resumed; an unknown one is 404."""
    shop.engine.schedule("tick", FixedRate("1h"))(lambda: None)
    assert [one["name"] for one in api.get("/schedules").json["items"]] == ["tick"]
    assert api.post("/schedules/tick/pause").json["status"] == "paused"
    made = api.post("/schedules/tick/run", json={}).json
    assert shop.task(made["task_id"]).type == "tick"
    assert api.post("/schedules/tick/resume").status_code == 200
    assert len(api.get("/schedules/tick").json["next_times"]) >= 1
    for call in (api.get("/schedules/nope"), api.post("/schedules/nope/pause"), api.post("/schedules/nope/run", json={})):
        assert call.status_code == 404


def test_stored_script_is_data(shop: Shop, api: Client) -> None:
    """Whatever stands in a payload, a type or an error is sent as JSON, and never as a page."""
    script = "<script>alert(1)</script>"
    task_id = shop.enqueue("a", {script: script})
    end(shop, task_id, "DEAD", script)
    for answer in (api.get(f"/tasks/{task_id}"), api.get("/tasks"), api.get("/dead-groups"), api.get(f"/tasks/{script}")):
        assert answer.mimetype in ("application/json", "application/problem+json")

"""R4 and R14: a claim takes due tasks in order, and every task is claimed by exactly one node."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine.domain.task import Claimed
from flask_taskengine.store import nodes
from tests.support.shop import Shop, statements_of
from tests.support.worker import ROOT

TYPES = ["a", "b", "c"]


@pytest.fixture
def node(shop: Shop) -> str:
    """Register a node."""
    return register(shop, "node-1")


def register(shop: Shop, name: str) -> str:
    """Write the row of a node, and return its name."""
    row: dict[str, Any] = {"id": name, "label": name, "host": "h", "pid": 1, "version": "0", "concurrency": 8, "types": [], "limits": {}}
    with shop.outside.begin() as connection:
        nodes.register(connection, shop.dialect.tables, row)
    return name


def claim(shop: Shop, node: str, rooms: Mapping[str, int], most: int) -> list[Claimed]:
    """Claim as the dispatcher does, on a connection whose statements commit for themselves."""
    with shop.outside.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        return shop.dialect.claim(connection, node, rooms, most)


# --- what a claim does ----------------------------------------------------------------------------------------------------


def test_r04_a_claim_takes_the_task(shop: Shop, node: str) -> None:
    """The row is RUNNING and names the node; attempts and the fencing token have risen; the claim hands out what a run needs."""
    shop.enqueue("a", {"n": [1]}, priority=4, idempotency_key="k", max_attempts=3)
    before = shop.tasks()[0]
    with statements_of(shop.outside) as statements:
        (claimed,) = claim(shop, node, {"a": 5}, 5)
    assert len(statements) == 1
    task = shop.task(before.id)
    assert (task.status, task.claimed_by, task.attempts, task.claims) == ("RUNNING", node, 1, 1)
    assert task.claimed_at == task.updated_at
    assert task.claimed_at is not None
    assert task.claimed_at >= before.created_at
    assert claimed == Claimed(
        id=task.id,
        type="a",
        payload={"n": [1]},
        priority=4,
        attempts=1,
        max_attempts=3,
        available_at=before.available_at,
        created_at=before.created_at,
        claimed_at=task.claimed_at,
        claims=1,
        idempotency_key="k",
        trace_context=None,
    )
    assert claim(shop, node, {"a": 5}, 5) == []


def test_r04_only_the_types_that_were_asked_for(shop: Shop, node: str) -> None:
    """A type that the node does not know, or that has no room, is left to others."""
    ids = shop.enqueue_many("a", "b", "A", "a ".strip(), "ab")
    assert [task.id for task in claim(shop, node, {"a": 9}, 9)] == [ids[0], ids[3]]


@pytest.mark.parametrize("state", ["unknown", "expired"])
def test_r04_a_node_without_its_lease_claims_nothing(shop: Shop, node: str, state: str) -> None:
    """Neither a node that the reaper has marked as expired, nor one without a row."""
    shop.enqueue("a")
    if state == "expired":
        with shop.outside.begin() as connection:
            assert nodes.expire(connection, shop.dialect.tables, node, None)
    assert claim(shop, node if state == "expired" else "nobody", {"a": 5}, 5) == []
    assert shop.tasks()[0].status == "PENDING"


def test_r04_what_has_ended_or_runs_is_not_claimed(shop: Shop, node: str) -> None:
    """PENDING is the only status that a claim takes."""
    for status in ("RUNNING", "SUCCEEDED", "FAILED", "DEAD", "CANCELLED"):
        ended = "NULL" if status == "RUNNING" else "created_at"
        task_id = shop.enqueue("a")
        shop.sql(f"UPDATE taskengine_task SET status = '{status}', finished_at = {ended} WHERE id = {task_id}")
    assert claim(shop, node, {"a": 9}, 9) == []


# --- order ----------------------------------------------------------------------------------------------------------------


def test_r14_the_order_of_a_batch(shop: Shop, node: str) -> None:
    """Higher priority first, across types; then the earlier due; then the smaller id. The batch is handed out in this order."""
    rng = random.Random(3)
    moments = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=s) for s in range(3)]
    with shop.app.app_context():
        shop.engine.enqueue_many(
            {"type": rng.choice(TYPES), "priority": rng.choice([-1, 0, 0, 5]), "available_at": rng.choice(moments)} for _ in range(60)
        )
        shop.db.session.commit()
    expected = [task.id for task in sorted(shop.tasks(), key=lambda task: (-task.priority, task.available_at, task.id))]
    got = [[task.id for task in claim(shop, node, dict.fromkeys(TYPES, 60), most)] for most in (1, 7, 30, 60)]
    assert [len(batch) for batch in got] == [1, 7, 30, 22]
    assert [task_id for batch in got for task_id in batch] == expected


def test_r14_a_saturated_type_does_not_stand_in_the_way(shop: Shop, node: str) -> None:
    """Where the first type has room for one, the others fill the batch, in order."""
    with shop.app.app_context():
        shop.engine.enqueue_many({"type": "a", "priority": 9} for _ in range(50))
        shop.engine.enqueue_many({"type": "b", "priority": priority} for priority in (1, 3, 2))
        shop.db.session.commit()
    claimed = claim(shop, node, {"a": 1, "b": 10}, 10)
    assert [(task.type, task.priority) for task in claimed] == [("a", 9), ("b", 3), ("b", 2), ("b", 1)]


def test_r18_nothing_is_claimed_before_its_time(shop: Shop, node: str) -> None:
    """However high its priority; what is due behind it is claimed at once."""
    with shop.app.app_context():
        for _ in range(20):
            shop.engine.enqueue_after("a", None, 3600, priority=100)
        due = shop.engine.enqueue("a", priority=-100)
        shop.db.session.commit()
    assert [task.id for task in claim(shop, node, {"a": 50}, 50)] == [due.id]


def test_r18_claimed_as_soon_as_it_is_due(shop: Shop, node: str) -> None:
    """Asked again and again, a claim takes the task at its time by the database's clock, and not before."""
    with shop.app.app_context():
        made = shop.engine.enqueue_after("a", None, "300ms")
        shop.db.session.commit()
    while not (claimed := claim(shop, node, {"a": 1}, 1)):
        pass
    assert claimed[0].id == made.id
    assert timedelta(0) <= claimed[0].claimed_at - claimed[0].available_at < timedelta(seconds=2)


def test_r04_a_claim_never_exceeds_its_rooms(shop: Shop, node: str) -> None:
    """Not in all, not of a type, whatever the mixture; nor does it leave anything that there was room for."""
    rng = random.Random(11)
    waiting = Counter(dict.fromkeys(TYPES, 60))
    with shop.app.app_context():
        for n in range(60):
            shop.engine.enqueue_many({"type": task_type, "priority": n % 4} for task_type in TYPES)
        shop.db.session.commit()
    while waiting.total():
        rooms = {task_type: rng.randint(1, 6) for task_type in TYPES if rng.random() < 0.8}
        most = rng.randint(1, 9)
        if not rooms:
            continue
        taken = Counter(task.type for task in claim(shop, node, rooms, most))
        assert all(taken[task_type] <= rooms[task_type] for task_type in taken)
        assert taken.total() == min(most, sum(min(room, waiting[task_type]) for task_type, room in rooms.items()))
        waiting -= taken


# --- pause ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paused", ["a", "*"])
def test_r04_a_paused_type_is_not_claimed(shop: Shop, node: str, paused: str) -> None:
    """One type, or all by ``*``; resumed it is claimed again."""
    ids = shop.enqueue_many("a", "b")
    shop.sql(f"INSERT INTO taskengine_type (type, paused_at) VALUES ('{paused}', CURRENT_TIMESTAMP)")
    shop.sql("INSERT INTO taskengine_type (type) VALUES ('b')")
    assert [task.id for task in claim(shop, node, {"a": 5, "b": 5}, 5)] == ([] if paused == "*" else ids[1:])
    shop.sql("UPDATE taskengine_type SET paused_at = NULL")
    assert [task.id for task in claim(shop, node, {"a": 5, "b": 5}, 5)] == (ids if paused == "*" else ids[:1])


# --- looking ahead --------------------------------------------------------------------------------------------------------


def test_r18_seconds_to_due(shop: Shop) -> None:
    """For each type that was asked for and waits: until its earliest task is due, whatever its priority; negative when overdue."""
    with shop.app.app_context():
        shop.engine.enqueue_after("a", None, 100, priority=5)
        shop.engine.enqueue_after("a", None, 50, priority=0)
        shop.engine.enqueue_after("b", None, 3600)
        shop.engine.enqueue_at("b", None, datetime.now(UTC) - timedelta(seconds=30), priority=-5)
        shop.engine.enqueue_after("other", None, 1)
        shop.db.session.commit()
    with shop.outside.connect() as connection:
        due = shop.dialect.seconds_to_due(connection, ["a", "b", "c"])
        everything = shop.dialect.pending_types(connection)
    assert due == {"a": pytest.approx(50, abs=5), "b": pytest.approx(-30, abs=5)}
    assert everything == {"a": pytest.approx(50, abs=5), "b": pytest.approx(-30, abs=5), "other": pytest.approx(1, abs=5)}


def test_r04_a_paused_type_is_not_looked_forward_to(shop: Shop) -> None:
    """A dispatcher must not stay awake for due tasks that nobody may claim."""
    shop.enqueue_many("a", "b")
    shop.sql("INSERT INTO taskengine_type (type, paused_at) VALUES ('a', CURRENT_TIMESTAMP)")
    with shop.outside.connect() as connection:
        assert set(shop.dialect.seconds_to_due(connection, ["a", "b"])) == {"b"}
        assert set(shop.dialect.pending_types(connection)) == {"a", "b"}
    shop.sql("INSERT INTO taskengine_type (type, paused_at) VALUES ('*', CURRENT_TIMESTAMP)")
    with shop.outside.connect() as connection:
        assert shop.dialect.seconds_to_due(connection, ["a", "b"]) == {}


def test_r04_more_types_than_a_statement_takes(shop: Shop, node: str) -> None:
    """An app may know a thousand types: every one of them gets its turn."""
    types = [f"type {n}" for n in range(1000)]
    shop.enqueue_many(*types[::50], *types[-3:])
    taken: set[str] = set()
    for _ in range(200):
        taken |= {task.type for task in claim(shop, node, dict.fromkeys(types, 5), 5)}
        if len(taken) == 23:
            break
    assert taken == {*types[::50], *types[-3:]}


# --- many processes -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_r04_many_processes_claim_each_task_once(shop: Shop) -> None:
    """8 x 2,500 claims on PostgreSQL, 4 x 500 on SQLite, of several types and priorities: none twice, none lost, no error."""
    processes, each = (8, 2500) if shop.is_postgresql else (4, 500)
    with shop.app.app_context():
        shop.engine.enqueue_many({"type": TYPES[n % 3], "priority": n % 7} for n in range(processes * each))
        shop.db.session.commit()
    url = shop.outside.url.render_as_string(hide_password=False)
    names = [register(shop, f"node-{n}") for n in range(processes)]
    command = [sys.executable, "-m", "tests.support.claimer", url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    running = [subprocess.Popen([*command, name, "10", *TYPES], **pipes) for name in names]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        ends = [process.communicate(timeout=90) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [(process.returncode, end[1]) for process, end in zip(running, ends, strict=True)] == [(0, "")] * processes
    claims = {name: [int(task_id) for task_id in end[0].split()] for name, end in zip(names, ends, strict=True)}
    taken = [task_id for ids in claims.values() for task_id in ids]
    assert len(taken) == len(set(taken)) == processes * each
    table = shop.dialect.tables.task
    with shop.outside.connect() as connection:
        rows = connection.execute(sa.select(table.c.id, table.c.claimed_by).where(table.c.status == "RUNNING", table.c.claims == 1)).all()
    assert {(task_id, name) for name, ids in claims.items() for task_id in ids} == {(row[0], row[1]) for row in rows}

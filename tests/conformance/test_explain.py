"""Why a task is not running: one test for each answer, on every database."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import Limits, TaskNotFound
from flask_taskengine.cli import taskengine
from flask_taskengine.domain.outcome import Failure, Outcome, Verdict
from flask_taskengine.domain.states import TaskStatus
from flask_taskengine.engine.explain import Code, Explanation
from flask_taskengine.store import nodes, tasks
from flask_taskengine.store.clock import db_after
from tests.support.shop import Shop, statements_of
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until


def add_node(shop: Shop, name: str, types: list[str] | None = None, concurrency: int = 8, limits: Mapping[str, Any] | None = None) -> None:
    """Write the row of a node that beats at this moment."""
    row = {"id": name, "label": name, "host": "h", "pid": 1, "version": "1", "concurrency": concurrency}
    with shop.outside.begin() as connection:
        nodes.register(connection, shop.dialect.tables, row | {"types": types or ["email"], "limits": limits or {}})


def silence(shop: Shop, name: str, seconds: float) -> None:
    """Let a node have been silent for so long."""
    n = shop.dialect.tables.node
    with shop.outside.begin() as connection:
        connection.execute(sa.update(n).where(n.c.id == name).values(heartbeat_at=db_after(-seconds)))


def pause(shop: Shop, task_type: str, **values: Any) -> None:
    """Pause a type, or all of them."""
    with shop.outside.begin() as connection:
        connection.execute(sa.insert(shop.dialect.tables.type).values(type=task_type, paused_at=db_after(-60), **values))


def claim(shop: Shop, name: str, most: int = 1, task_type: str = "email") -> list[int]:
    """Let a node claim tasks, and return their ids."""
    with shop.outside.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        return [task.id for task in shop.dialect.claim(connection, name, {task_type: most}, most)]


def change(shop: Shop, task_id: int, **values: Any) -> None:
    """Change columns of a task."""
    t = shop.dialect.tables.task
    with shop.outside.begin() as connection:
        connection.execute(sa.update(t).where(t.c.id == task_id).values(values))


def finish(shop: Shop, task_id: int, verdict: Verdict, status: TaskStatus, **outcome: Any) -> None:
    """End the current attempt of a task."""
    with shop.outside.begin() as connection:
        claims = tasks.holding(connection, shop.dialect.tables, task_id)
        assert claims is not None
        assert tasks.finish(connection, shop.dialect.tables, task_id, claims[0], Outcome(verdict, status, **outcome))


def explain(shop: Shop, task_id: int) -> Explanation:
    """Ask, and leave nothing open."""
    with shop.app.app_context():
        told: Explanation = shop.engine.explain(task_id)
        shop.db.session.rollback()
    assert told.details["task_id"] == task_id
    assert told.details["type"]
    return told


# --- how it is asked ----------------------------------------------------------------------------------------------------


def test_a_task_that_does_not_exist_is_an_error(shop: Shop) -> None:
    """An id that is unknown, rolled back or removed is no state of a task."""
    with shop.app.app_context(), pytest.raises(TaskNotFound, match="no task has the id 4711"):
        shop.engine.explain(4711)


def test_it_reads_the_callers_transaction_and_never_commits(shop: Shop) -> None:
    """A task that is not committed yet can be explained where it was enqueued, and is still gone after a rollback."""
    with shop.app.app_context():
        task_id = shop.engine.enqueue("email").id
        assert shop.engine.explain(task_id).code == "no_worker"
        shop.db.session.rollback()
        with shop.outside.connect() as connection, pytest.raises(TaskNotFound):
            shop.engine.explain(task_id, session=connection)


def test_it_takes_few_statements(shop: Shop) -> None:
    """The longest way through the question is ten statements, and they write nothing."""
    add_node(shop, "a", ["email", "report"], limits={"report": {"cluster_wide": 1}})
    first = shop.enqueue("email")
    shop.enqueue("email", priority=1)
    with shop.outside.connect() as connection, statements_of(shop.outside) as seen:
        assert shop.engine.explain(first, session=connection).code is Code.BEHIND
    assert len(seen) <= 10
    assert all(statement.lstrip().startswith(("SELECT", "WITH")) for statement in seen)


# --- it waits -----------------------------------------------------------------------------------------------------------


def test_a_task_that_is_not_due(shop: Shop) -> None:
    """It says when the task is due."""
    with shop.app.app_context():
        task_id = shop.engine.enqueue_after("email", None, "5m").id
        shop.db.session.commit()
    told = explain(shop, task_id)
    assert told.code is Code.SCHEDULED
    assert 290 < told.details["seconds"] <= 300
    assert told.details["available_at"] == shop.task(task_id).available_at
    assert "it is not due yet: it may run from" in told.text
    assert told.text.endswith("in 5 min")


def test_a_task_that_waits_for_a_retry(shop: Shop) -> None:
    """It says which attempt is next, when, and what went wrong."""
    add_node(shop, "a")
    task_id = shop.enqueue("email")
    for attempt in (1, 2):
        assert claim(shop, "a") == [task_id]
        finish(shop, task_id, Verdict.RETRIED, TaskStatus.PENDING, delay=0 if attempt == 1 else 240, failure=Failure("ValueError", "no"))
    told = explain(shop, task_id)
    assert told.code is Code.RETRY_WAIT
    assert "attempt 3 of 5" in told.text
    assert "in 4 min; last error: ValueError: no" in told.text
    assert (told.details["attempts"], told.details["max_attempts"]) == (2, 5)


def test_a_paused_type(shop: Shop) -> None:
    """It says who paused it and why."""
    add_node(shop, "a")
    task_id = shop.enqueue("email")
    pause(shop, "email", paused_by="ann", pause_reason="the mail server is down")
    told = explain(shop, task_id)
    assert told.code is Code.TYPE_PAUSED
    assert "'email' is paused by ann since" in told.text
    assert "(the mail server is down)" in told.text
    assert told.details["by"] == "ann"


def test_all_types_paused(shop: Shop) -> None:
    """A pause of everything goes before that of the type."""
    task_id = shop.enqueue("email")
    pause(shop, "email")
    pause(shop, "*", paused_by="bob")
    told = explain(shop, task_id)
    assert told.code is Code.ALL_PAUSED
    assert told.text.startswith("all types are paused by bob since")


def test_no_worker_at_all(shop: Shop) -> None:
    """A node that has been silent for longer than its lease is none; the remedy is named."""
    task_id = shop.enqueue("email")
    add_node(shop, "a")
    silence(shop, "a", 61)
    told = explain(shop, task_id)
    assert told.code is Code.NO_WORKER
    assert "start one with `flask taskengine worker`" in told.text


def test_a_type_that_no_live_node_knows(shop: Shop) -> None:
    """It says until when it only waits, and after that, that its attempts fail."""
    add_node(shop, "a", ["report"])
    task_id = shop.enqueue("email")
    told = explain(shop, task_id)
    assert told.code is Code.TYPE_UNKNOWN
    assert "no live node processes its type 'email'; alive: a." in told.text
    assert "its attempts begin to fail at" in told.text
    assert (told.details["grace_until"] - shop.task(task_id).available_at).total_seconds() == 300
    change(shop, task_id, available_at=db_after(-400))
    assert "so its attempts fail until one knows it" in explain(shop, task_id).text


def test_a_type_at_its_cluster_wide_limit(shop: Shop) -> None:
    """It names the limit, the nodes and the tasks that hold it; of nodes that differ the stricter holds."""
    add_node(shop, "a", limits={"email": {"cluster_wide": 2}})
    add_node(shop, "b", limits={"email": {"cluster_wide": 3, "per_node": 5}})
    ids = shop.enqueue_many(*["email"] * 4)
    assert claim(shop, "a") + claim(shop, "b") == ids[:2]
    told = explain(shop, ids[3])
    assert told.code is Code.TYPE_LIMIT_CLUSTER
    assert told.text == f"its type 'email' is at its cluster-wide limit of 2, held by a (1), b (1); tasks {ids[0]}, {ids[1]}"
    assert told.details["held_by"] == {"a": 1, "b": 1}
    assert told.details["holders"] == ids[:2]
    assert told.details["ahead"] == 1


def test_a_type_at_its_per_node_limit_everywhere(shop: Shop) -> None:
    """A node with its limit used up and one without a free slot do not run it; one with room would."""
    add_node(shop, "a", limits={"email": {"per_node": 1}})
    add_node(shop, "b", concurrency=1)
    ids = shop.enqueue_many(*["email"] * 3)
    claim(shop, "a")
    claim(shop, "b")
    told = explain(shop, ids[2])
    assert told.code is Code.TYPE_LIMIT_NODE
    assert told.text.endswith("a (1 of 1), b (no free slot of 1)")
    add_node(shop, "c")
    assert explain(shop, ids[2]).code is Code.DUE


def test_a_task_behind_others(shop: Shop) -> None:
    """What has a higher priority or is due earlier comes first, of every type that the same nodes process; nothing else does."""
    add_node(shop, "a", ["email", "report"])
    higher = shop.enqueue("report", priority=9)
    earlier = shop.enqueue("email")
    task_id = shop.enqueue("email")
    shop.enqueue("email")
    shop.enqueue("email", priority=-1)
    shop.enqueue("elsewhere", priority=9)
    with shop.app.app_context():
        shop.engine.enqueue_after("email", None, 60, priority=9)
        shop.db.session.commit()
    told = explain(shop, task_id)
    assert told.code is Code.BEHIND
    assert told.details["ahead"] == 2
    assert "behind 2 others of higher priority or earlier time; 8 of the 8 slots" in told.text
    assert explain(shop, earlier).details["ahead"] == 1
    assert explain(shop, higher).code is Code.DUE


def test_what_can_not_run_keeps_nobody_waiting(shop: Shop) -> None:
    """Paused types and types at their cluster-wide limit are not counted as ahead."""
    add_node(shop, "a", ["email", "held", "full"], limits={"full": {"cluster_wide": 1}})
    shop.enqueue("full", priority=9)
    claim(shop, "a", task_type="full")
    shop.enqueue("full", priority=9)
    shop.enqueue("held", priority=9)
    pause(shop, "held")
    assert explain(shop, shop.enqueue("email")).code is Code.DUE


def test_a_long_queue_is_counted_to_a_thousand(shop: Shop) -> None:
    """The count is bounded: a long queue costs no more than a thousand rows of the index."""
    add_node(shop, "a")
    with shop.app.app_context():
        shop.engine.enqueue_many([{"type": "email"}] * 1001)
        task_id = shop.engine.enqueue("email").id
        shop.db.session.commit()
    told = explain(shop, task_id)
    assert told.details["ahead"] == 1000
    assert "behind 1,000 or more others" in told.text


def test_no_free_slot(shop: Shop) -> None:
    """The next task waits for a slot where its type has no limit."""
    add_node(shop, "a", concurrency=1)
    ids = shop.enqueue_many("email", "email")
    claim(shop, "a")
    told = explain(shop, ids[1])
    assert told.code is Code.NO_FREE_SLOT
    assert "none of the 1 slots of the live node that processes its type is free" in told.text


def test_a_task_that_nothing_holds_up(shop: Shop) -> None:
    """It says so, and where to look if that has been so for long."""
    add_node(shop, "a")
    task_id = shop.enqueue("email")
    told = explain(shop, task_id)
    assert told.code is Code.DUE
    assert told.text.endswith("it should start at once")
    change(shop, task_id, available_at=db_after(-120))
    assert "see the workers' logs" in explain(shop, task_id).text


# --- it runs ------------------------------------------------------------------------------------------------------------


def test_a_running_task(shop: Shop) -> None:
    """It says where, since when, which attempt, and how long the node's lease runs."""
    add_node(shop, "a")
    task_id = shop.enqueue("email", max_attempts=3)
    claim(shop, "a")
    told = explain(shop, task_id)
    assert told.code is Code.RUNNING
    assert "it runs on node a since" in told.text
    assert "attempt 1 of 3" in told.text
    with shop.outside.connect() as connection:
        beat = nodes.alive(connection, shop.dialect.tables, 60)[0]["heartbeat_at"]
    assert (told.details["lease_until"] - beat).total_seconds() == 60


def test_a_running_task_that_was_asked_to_end(shop: Shop) -> None:
    """It is CANCELLED once its handler has ended."""
    add_node(shop, "a")
    task_id = shop.enqueue("email")
    claim(shop, "a")
    with shop.app.app_context():
        shop.engine.cancel(task_id)
        shop.db.session.commit()
    told = explain(shop, task_id)
    assert told.code is Code.CANCEL_REQUESTED
    assert "CANCELLED once its handler has ended" in told.text


@pytest.mark.parametrize("fate", ["silent", "expired", "removed"])
def test_a_task_whose_node_is_gone(shop: Shop, fate: str) -> None:
    """A silent, an expired and a missing node are the same to the task; it says who will requeue it."""
    add_node(shop, "a")
    task_id = shop.enqueue("email")
    claim(shop, "a")
    with shop.outside.begin() as connection:
        if fate == "removed":
            nodes.remove(connection, shop.dialect.tables, ["a"])
        if fate == "expired":
            nodes.expire(connection, shop.dialect.tables, "a", None)
    if fate == "silent":
        silence(shop, "a", 90)
    told = explain(shop, task_id)
    assert told.code is Code.RUNNING_ORPHANED
    assert "no worker is alive to requeue it" in told.text
    add_node(shop, "b")
    told = explain(shop, task_id)
    assert "it is about to be requeued by a live worker: b" in told.text
    assert told.details["alive"] == ["b"]


# --- it has ended -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "verdict", "error", "said"),
    [
        (TaskStatus.SUCCEEDED, Verdict.SUCCEEDED, None, "in attempt 1 of 5"),
        (
            TaskStatus.FAILED,
            Verdict.FAILED,
            "Reject: never",
            "an error that no retry can mend; last error: Reject: never; it can be retried",
        ),
        (TaskStatus.DEAD, Verdict.DEAD, "ValueError: no", "after attempt 1 of 5; last error: ValueError: no; it can be retried by hand"),
    ],
)
def test_a_task_that_has_ended(shop: Shop, status: TaskStatus, verdict: Verdict, error: str | None, said: str) -> None:
    """It says how and when."""
    add_node(shop, "a")
    task_id = shop.enqueue("email")
    claim(shop, "a")
    finish(shop, task_id, verdict, status, failure=Failure(*error.split(": ")) if error else None)
    told = explain(shop, task_id)
    assert told.code is Code.ENDED
    assert told.text.startswith(f"it has ended: {status} at ")
    assert said in told.text
    assert told.details["status"] == status


def test_a_cancelled_task(shop: Shop) -> None:
    """It says whether it had begun."""
    task_id = shop.enqueue("email")
    with shop.app.app_context():
        shop.engine.cancel(task_id)
        shop.db.session.commit()
    assert "cancelled by a person or the code before it ran" in explain(shop, task_id).text


# --- with a worker, and from a shell ------------------------------------------------------------------------------------


def test_a_worker_tells_its_limits(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """What a real worker writes into its row is enough to explain its limits."""
    shop = make_shop()
    go_on = threading.Event()

    @shop.engine.task("email", limits=Limits(per_node=1))
    def email(payload: Any) -> None:
        go_on.wait(10)

    @shop.engine.task("report", limits=Limits(cluster_wide=1))
    def report(payload: Any) -> None:
        go_on.wait(10)

    run_worker(shop)
    ids = shop.enqueue_many("email", "report", "email", "report")
    try:
        wait_until(lambda: [shop.task(i).status for i in ids[:2]] == ["RUNNING"] * 2)
        assert explain(shop, ids[2]).code is Code.TYPE_LIMIT_NODE
        assert explain(shop, ids[3]).code is Code.TYPE_LIMIT_CLUSTER
    finally:
        go_on.set()


def test_why_from_a_shell(shop: Shop) -> None:
    """The command prints the sentence, or with --json all that there is; an unknown id ends with 1."""
    task_id = shop.enqueue("email")
    runner = shop.app.test_cli_runner()
    told = runner.invoke(taskengine, ["why", str(task_id)])
    assert told.exit_code == 0
    assert told.output.startswith(f"task {task_id} (email): it is due since")
    as_json = json.loads(runner.invoke(taskengine, ["why", str(task_id), "--json"]).output)
    assert as_json["code"] == "no_worker"
    assert as_json["details"]["task_id"] == task_id
    missing = runner.invoke(taskengine, ["why", "4711", "--json"])
    assert missing.exit_code == 1
    assert "no task has the id 4711" in json.loads(missing.output)["error"]

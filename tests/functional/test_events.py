"""What is announced of a task's life: every declared signal, with its declared fields, in the order of the row's states."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flask_taskengine import Reject, RetryPolicy, Snooze, TaskContext, signals
from flask_taskengine.runtime.caretaker import Caretaker
from tests.support.shop import Events, Shop
from tests.support.shop_fixtures import RunWorker, events, make_shop, run_worker, shop
from tests.support.waiting import wait_until

__all__ = ["events", "make_shop", "run_worker", "shop"]

ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, base_backoff=0, jitter=0)


@pytest.fixture
def lively(shop: Shop) -> Shop:
    """Give a shop with a processor for every way in which an attempt can end."""
    snoozed: set[int] = set()

    @shop.engine.task("succeeds")
    def succeed(payload: object) -> None: ...

    @shop.engine.task("dies", retry=TWICE)
    def die(payload: object) -> None:
        raise ValueError("no")

    @shop.engine.task("fails")
    def fail(payload: object) -> None:
        raise Reject("never")

    @shop.engine.task("overruns", retry=ONCE, timeout=0.2)
    def overrun(payload: object, context: TaskContext) -> None:
        while True:
            context.cancel_event.wait(0.01)

    @shop.engine.task("snoozes")
    def snooze(payload: object, context: TaskContext) -> None:
        if context.task_id not in snoozed:
            snoozed.add(context.task_id)
            raise Snooze(0)

    @shop.engine.task("waits")
    def wait(payload: object, context: TaskContext) -> None:
        assert context.cancel_event.wait(20)

    return shop


def test_every_signal_carries_what_is_declared(lively: Shop, events: Events, run_worker: RunWorker) -> None:
    """What is declared is sent, and what is sent is declared: every signal with exactly its fields, and every field has a meaning."""
    ids = {name: lively.enqueue(name) for name in ("succeeds", "dies", "fails", "overruns", "snoozes")}
    lively.enqueue("waits", idempotency_key="k")
    lost = lively.enqueue("waits", idempotency_key="k")
    worker = run_worker(lively)
    for task_id in ids.values():
        lively.wait_for(task_id)
    with lively.app.app_context():
        lively.engine.retry(ids["fails"])
        lively.db.session.commit()
    wait_until(lambda: "task_started" in events.names(lost))
    lively.sql(f"UPDATE taskengine_task SET claims = claims + 1 WHERE id = {lost}")
    worker.executor.lose()
    worker.executor.cancel(lost, 1)
    wait_until(lambda: "task_lease_lost" in events.names(lost), what=lambda: str(events.names(lost)))
    worker.node_lost(worker.membership.id)
    wait_until(lambda: len(events.of("node_joined")) == 2)
    with lively.app.app_context():
        cancelled = lively.engine.enqueue_after("succeeds", None, 100).id
        lively.db.session.commit()
        lively.engine.cancel(cancelled)
        lively.db.session.commit()
    worker.stop(0)
    caretaker = Caretaker(lively.host, None, lambda node: None)
    caretaker.died("ghost", "died")
    caretaker.start()
    wait_until(lambda: events.of("node_expired"))
    caretaker.stop(5)
    seen = {name: set(fields) for name, fields in events.seen}
    expected = {name: set(fields) for name, fields in signals.declared.items() if not name.startswith("schedule_")}
    assert seen == expected
    for name, fields in events.seen:
        assert set(fields) == expected[name], name
    assert set().union(*signals.declared.values()) == set(signals.FIELDS)


def test_each_state_is_announced_as_it_is_written(lively: Shop, events: Events, run_worker: RunWorker) -> None:
    """One signal per transition, named as the row says, in the order in which they happened."""
    ids = {name: lively.enqueue(name) for name in ("succeeds", "dies", "fails", "overruns", "snoozes")}
    worker = run_worker(lively)
    ended = {name: lively.wait_for(task_id).status for name, task_id in ids.items()}
    worker.stop(0)
    begun = ["task_enqueued", "task_claimed", "task_started"]
    again = begun[1:]

    def in_order(task_id: int) -> list[str]:
        # By attempt: the next one may be claimed before the end of the last one is told.
        of_task = [(fields.get("token", 0), name) for name, fields in events.seen if fields.get("task_id") == task_id]
        return [name for _, name in sorted(of_task, key=lambda one: one[0])]

    assert {name: in_order(task_id) for name, task_id in ids.items()} == {
        "succeeds": [*begun, "task_succeeded"],
        "dies": [*begun, "task_retried", *again, "task_dead"],
        "fails": [*begun, "task_failed"],
        "overruns": [*begun, "task_timed_out", "task_dead"],
        "snoozes": [*begun, "task_requeued", *again, "task_succeeded"],
    }
    assert ended == {"succeeds": "SUCCEEDED", "dies": "DEAD", "fails": "FAILED", "overruns": "DEAD", "snoozes": "SUCCEEDED"}
    [dead] = [fields for fields in events.of("task_dead") if fields["task_id"] == ids["dies"]]
    assert (dead["attempt"], dead["token"], str(dead["failure"])) == (2, 2, "ValueError: no")


@pytest.fixture
def everywhere() -> Iterator[None]:
    """Have a receiver that raises at every signal."""

    def refuse(sender: object, **fields: object) -> None:
        raise RuntimeError("a receiver's own fault")

    for signal in signals.namespace.values():
        signal.connect(refuse)
    yield
    for signal in signals.namespace.values():
        signal.disconnect(refuse)


def test_a_receiver_that_raises_changes_nothing(
    lively: Shop, events: Events, everywhere: None, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is told, every task ends as it would have, the other receivers learn of it, and the fault is logged once."""
    ids = {name: lively.enqueue(name) for name in ("succeeds", "dies", "fails", "overruns", "snoozes")}
    worker = run_worker(lively)
    assert {name: lively.wait_for(task_id).status for name, task_id in ids.items()} == {
        "succeeds": "SUCCEEDED",
        "dies": "DEAD",
        "fails": "FAILED",
        "overruns": "DEAD",
        "snoozes": "SUCCEEDED",
    }
    worker.stop(0)
    assert events.names(ids["succeeds"]) == ["task_enqueued", "task_claimed", "task_started", "task_succeeded"]
    assert sum("logged once per receiver" in record.getMessage() for record in caplog.records) == 1

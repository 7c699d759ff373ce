"""Counters, histograms and gauges for Prometheus, in a registry of the process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

pytest.importorskip("prometheus_client", reason="of the extra prometheus")

from prometheus_client import CollectorRegistry

from flask_taskengine import Limits, Reject, RetryPolicy, Snooze, TaskContext
from flask_taskengine.store.gauges import MOST_COUNTED
from flask_taskengine.telemetry import metrics, names, queue
from tests.support.databases import PostgresqlDatabases
from tests.support.hosts import MakeApp
from tests.support.postgresql import MakeCluster
from tests.support.scrapes import Scrape, scraped
from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop, RunWorker, make_shop, run_worker, shop
from tests.support.waiting import wait_until

__all__ = ["make_shop", "run_worker", "shop"]


@pytest.fixture
def registry(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """Count what the shop does in a registry of its own, whose gauges are read anew at each scrape."""
    monkeypatch.setattr(queue, "FRESH", 0.0)
    registry = CollectorRegistry()
    metrics.register(shop.app, registry)
    return registry


@pytest.fixture
def lively(shop: Shop) -> Shop:
    """Give a shop with a processor for every way in which an attempt can end."""
    snoozed: set[int] = set()

    @shop.engine.task("succeeds")
    def succeed(payload: object) -> None: ...

    @shop.engine.task("dies", retry=RetryPolicy(max_attempts=2, base_backoff=0, jitter=0))
    def die(payload: object) -> None:
        raise ValueError("no")

    @shop.engine.task("fails")
    def fail(payload: object) -> None:
        raise Reject("never")

    @shop.engine.task("overruns", retry=RetryPolicy(max_attempts=1), timeout=0.1)
    def overrun(payload: object, context: TaskContext) -> None:
        while True:
            context.cancel_event.wait(0.01)

    @shop.engine.task("snoozes")
    def snooze(payload: object, context: TaskContext) -> None:
        if context.task_id not in snoozed:
            snoozed.add(context.task_id)
            raise Snooze(0)

    return shop


# --- counters and histograms ------------------------------------------------------------------------------------------


def test_r05_counts_agree_with_the_database(lively: Shop, registry: CollectorRegistry, run_worker: RunWorker) -> None:
    """Scraped under load and at the end: what was enqueued, claimed, started and how it ended is what the rows say."""
    types = ["succeeds"] * 60 + ["dies"] * 10 + ["fails"] * 10 + ["overruns"] * 2 + ["snoozes"] * 10
    ids = lively.enqueue_many(*types)
    for _ in range(2):
        lively.enqueue("succeeds", idempotency_key="k")
    worker = run_worker(lively)
    ended: dict[Any, float] = {}

    def all_ended() -> bool:
        nonlocal ended
        before, ended = ended, scraped(registry).by("taskengine_attempts_finished_total", "type", "outcome")
        assert all(ended[key] >= value for key, value in before.items()), "a counter went back"
        return sum(n for (_, outcome), n in ended.items() if outcome not in ("retried", "requeued")) == len(ids) + 1

    wait_until(all_ended, 30, lambda: str(ended))
    worker.stop(5)
    seen = scraped(registry)
    rows = Counter((task.type, task.status.lower()) for task in lively.tasks())
    final = {
        key: n
        for key, n in seen.by("taskengine_attempts_finished_total", "type", "outcome").items()
        if key[1] not in ("retried", "requeued")
    }
    assert final == rows
    claims = Counter({task.type: 0 for task in lively.tasks()})
    for task in lively.tasks():
        claims[task.type] += task.claims
    assert seen.of("taskengine_tasks_enqueued_total") == Counter(task.type for task in lively.tasks())
    assert seen.of("taskengine_tasks_claimed_total") == seen.of("taskengine_attempts_started_total") == claims
    assert seen.of("taskengine_tasks_deduplicated_total") == {"succeeds": 1}
    assert seen.of("taskengine_timeouts_total") == {"overruns": 2}
    assert seen("taskengine_attempts_finished_total", type="dies", outcome="retried") == 10
    assert seen.by("taskengine_tasks_requeued_total", "type", "reason") == {("snoozes", "snoozed"): 10}
    assert seen.of("taskengine_run_seconds_count") == seen.of("taskengine_queue_wait_seconds_count") == claims
    assert seen.of("taskengine_run_seconds_sum")["overruns"] >= 0.2
    assert seen.samples["taskengine_claim_seconds_count", frozenset()] > 0
    assert (seen("taskengine_in_flight"), seen("taskengine_slots")) == (0, 0)


def test_what_is_done_by_hand_is_counted(shop: Shop, registry: CollectorRegistry) -> None:
    """A cancel before the claim and a retry; neither has a run time."""
    task_id = shop.enqueue("one")
    with shop.app.app_context():
        shop.engine.cancel(task_id)
        shop.db.session.commit()
        shop.engine.retry(task_id)
        shop.db.session.commit()
    seen = scraped(registry)
    assert seen.by("taskengine_attempts_finished_total", "type", "outcome") == {("one", "cancelled"): 1}
    assert seen.by("taskengine_tasks_requeued_total", "type", "reason") == {("one", "retry"): 1}
    assert seen.of("taskengine_run_seconds_count") == {}


def test_slots_in_flight_and_lost_leases(shop: Shop, registry: CollectorRegistry, run_worker: RunWorker) -> None:
    """What runs in this process and how much could; an attempt whose lease is lost is counted and runs no more."""
    go = threading.Event()

    @shop.engine.task("waits")
    def wait(payload: object) -> None:
        assert go.wait(20)

    ids = shop.enqueue_many("waits", "waits", "waits")
    worker = run_worker(shop, 3)
    wait_until(lambda: scraped(registry)("taskengine_in_flight") == 3)
    assert scraped(registry)("taskengine_slots") == 3
    shop.sql(f"UPDATE taskengine_task SET claims = claims + 1 WHERE id = {ids[0]}")
    go.set()
    wait_until(lambda: scraped(registry)("taskengine_in_flight") == 0)
    wait_until(lambda: scraped(registry).of("taskengine_leases_lost_total") == {"waits": 1})
    worker.stop(5)
    assert scraped(registry)("taskengine_slots") == 0


# --- gauges of the queue ----------------------------------------------------------------------------------------------


def test_depth_by_type_and_status(shop: Shop, registry: CollectorRegistry) -> None:
    """Live rows are counted; a type that has gone empty is shown as 0, and so is one with a processor that never had a task."""

    @shop.engine.task("never")
    def never(payload: object) -> None: ...

    shop.enqueue_many("one", "one", "two")
    with shop.app.app_context():
        shop.engine.enqueue_after("one", None, 3600)
        shop.db.session.commit()
    shop.sql("UPDATE taskengine_task SET status = 'RUNNING' WHERE type = 'two'")
    seen = scraped(registry)
    assert seen.by("taskengine_tasks", "type", "status") == {
        ("one", "PENDING"): 3,
        ("one", "RUNNING"): 0,
        ("two", "PENDING"): 0,
        ("two", "RUNNING"): 1,
        ("never", "PENDING"): 0,
        ("never", "RUNNING"): 0,
    }
    assert seen.of("taskengine_due_tasks") == {"one": 2, "two": 0, "never": 0}
    assert seen("taskengine_queue_read") == 1
    shop.sql("DELETE FROM taskengine_task")
    assert set(scraped(registry).by("taskengine_tasks", "type", "status").values()) == {0}
    assert scraped(registry).by("taskengine_tasks", "type", "status").keys() == seen.by("taskengine_tasks", "type", "status").keys()


def test_the_age_of_the_earliest_due_task(shop: Shop, registry: CollectorRegistry) -> None:
    """By the database's clock, whatever the priority; 0 where nothing is due."""
    first = shop.enqueue("one", priority=-5)
    shop.enqueue("one", priority=5)
    with shop.app.app_context():
        shop.engine.enqueue_after("two", None, 3600)
        shop.db.session.commit()
    hour_ago = "statement_timestamp() - interval '1 hour'" if shop.is_postgresql else "strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 hour')"
    shop.sql(f"UPDATE taskengine_task SET available_at = {hour_ago} WHERE id = {first}")
    ages = scraped(registry).of("taskengine_oldest_due_seconds")
    assert 3600 <= ages.pop("one") < 3700
    assert ages == {"two": 0}


def test_nodes_limits_and_pauses(shop: Shop, registry: CollectorRegistry, run_worker: RunWorker) -> None:
    """Those in force: of live nodes, of the stricter limit, of each paused type and of all."""

    @shop.engine.task("one", limits=Limits(per_node=2, cluster_wide=5))
    def one(payload: object) -> None: ...

    worker = run_worker(shop)
    wait_until(lambda: scraped(registry)("taskengine_nodes") == 1)
    assert scraped(registry)("taskengine_limit", type="one", scope="cluster_wide") == 5
    assert scraped(registry)("taskengine_paused", type="one") == 0
    shop.sql("INSERT INTO taskengine_type (type, paused_at) VALUES ('one', CURRENT_TIMESTAMP)")
    assert scraped(registry)("taskengine_paused", type="one") == 1
    assert scraped(registry)("taskengine_paused", type="*") == 0
    shop.sql("UPDATE taskengine_type SET type = '*'")
    assert (scraped(registry)("taskengine_paused", type="one"), scraped(registry)("taskengine_paused", type="*")) == (0, 1)
    worker.stop(0)
    assert scraped(registry)("taskengine_nodes") == 0
    assert scraped(registry).by("taskengine_limit", "type", "scope") == {}


def test_what_the_server_says_of_itself(shop: Shop, registry: CollectorRegistry) -> None:
    """Dead rows and the queue of notifications, on the database that has them."""
    seen = scraped(registry)
    if shop.is_postgresql:
        assert seen("taskengine_dead_tuples") == 0
        assert 0 <= (seen("taskengine_notify_queue_ratio") or 0.0) < 0.01
    else:
        assert seen("taskengine_dead_tuples") is None
        assert seen("taskengine_notify_queue_ratio") is None


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect the statements of all engines of this process that read the task table."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "task" in statement:
            seen.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_scrapes_share_one_statement(shop: Shop) -> None:
    """Many scrapes at once and one after the other cost the database one statement within some seconds."""
    registry = CollectorRegistry()
    metrics.register(shop.app, registry)
    with statements() as seen:
        threads = [threading.Thread(target=scraped, args=(registry,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(5):
            assert scraped(registry)("taskengine_queue_read") == 1
    assert len(seen) == 1


def test_a_type_with_a_long_queue_is_counted_to_a_bound(shop: Shop, registry: CollectorRegistry) -> None:
    """PostgreSQL stops at the bound, so that a scrape costs no more with millions of rows."""
    if not shop.is_postgresql:
        return
    shop.sql(f"INSERT INTO taskengine_task (type) SELECT 'long' FROM generate_series(1, {MOST_COUNTED + 10})")
    seen = scraped(registry)
    assert seen("taskengine_tasks", type="long", status="PENDING") == MOST_COUNTED
    assert seen("taskengine_due_tasks", type="long") == MOST_COUNTED


def test_labels_are_bounded(shop: Shop, registry: CollectorRegistry) -> None:
    """Types that have no processor here share one label beyond a bound; those with one always have their own."""
    many = [f"type {n}" for n in range(names.MOST_TYPES + 20)]
    shop.enqueue_many(*many)
    seen = scraped(registry)
    enqueued = seen.of("taskengine_tasks_enqueued_total")
    assert len(enqueued) == names.MOST_TYPES + 1
    assert enqueued["_other"] == 20
    assert seen("taskengine_tasks", type="_other", status="PENDING") == 20

    @shop.engine.task("late")
    def late(payload: object) -> None: ...

    shop.enqueue_many("late", "another")
    enqueued = scraped(registry).of("taskengine_tasks_enqueued_total")
    assert (enqueued["late"], enqueued["_other"]) == (1, 21)


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_database_that_is_down_leaves_the_counters(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scrape succeeds without the gauges of the queue, says so, and it is logged once."""
    monkeypatch.setattr(queue, "FRESH", 0.0)
    host = make_app("postgresql+psycopg://nobody@127.0.0.1:1/none")
    registry = CollectorRegistry()
    metrics.register(host.app, registry)
    for _ in range(3):
        seen = scraped(registry)
        assert seen("taskengine_queue_read") == 0
        assert seen("taskengine_nodes") is None
        assert seen("taskengine_slots") == 0
    assert sum("gauges of the queue" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.postgresql
def test_a_database_that_hangs_holds_up_no_scrape(make_app: MakeApp, make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a bounded wait the scrape goes on without it; no more than one thread waits, and later it is read again."""
    monkeypatch.setattr(queue, "PATIENCE", 0.3)
    monkeypatch.setattr(queue, "FRESH", 0.0)
    cluster = make_cluster()
    databases = PostgresqlDatabases(cluster.url(), "own")
    host = make_app(databases.create())
    registry = CollectorRegistry()
    metrics.register(host.app, registry)
    assert scraped(registry)("taskengine_queue_read") == 1
    cluster.pause()
    began = time.monotonic()
    try:
        wait_until(lambda: scraped(registry)("taskengine_queue_read") == 0)
        for _ in range(3):
            scraped(registry)
    finally:
        cluster.resume()
    assert time.monotonic() - began < 8
    assert sum(thread.name == "taskengine-gauges" for thread in threading.enumerate()) <= 1
    wait_until(lambda: scraped(registry)("taskengine_queue_read") == 1)


# --- names and registries ---------------------------------------------------------------------------------------------


def test_names_are_those_declared(lively: Shop, registry: CollectorRegistry, run_worker: RunWorker) -> None:
    """Every metric that is shown is declared, with its kind, its labels and its meaning; every declared one is shown."""
    ids = [lively.enqueue(name) for name in ("succeeds", "dies", "overruns", "snoozes")]
    worker = run_worker(lively)
    for task_id in ids:
        lively.wait_for(task_id)
    worker.stop(5)
    shown = {name: family for name, family in scraped(registry).families.items() if not name.endswith("_created")}
    assert {name: (family.type, family.documentation) for name, family in shown.items()} == {
        metric.name: (metric.kind, metric.meaning) for metric in names.METRICS
    }
    for metric in names.METRICS:
        for sample in shown[metric.name].samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_the_registry_of_the_flask_exporter(make_app: MakeApp, sqlite_url: str) -> None:
    """With the setting, what the engine counts stands beside what ``prometheus_flask_exporter`` shows of requests."""
    exporter = pytest.importorskip("prometheus_flask_exporter", reason="of the extra prometheus")
    host = make_app(sqlite_url, TASKENGINE_METRICS=True)
    exporter.PrometheusMetrics(host.app)
    client = host.app.test_client()
    before = Scrape(client.get("/metrics").text)("taskengine_tasks_enqueued_total", type="shown") or 0
    with host.app.app_context():
        host.engine.enqueue("shown")
        host.db.session.commit()
    seen = Scrape(client.get("/metrics").text)
    assert seen("taskengine_tasks_enqueued_total", type="shown") == before + 1
    assert "flask_http_request_total" in seen.text
    assert seen("taskengine_queue_read") == 1


def test_a_registry_of_the_apps_own(shop: Shop) -> None:
    """An exporter with another registry gets the engine's metrics by ``register``, once however often that is called."""
    exporter = pytest.importorskip("prometheus_flask_exporter", reason="of the extra prometheus")
    shown = exporter.PrometheusMetrics(shop.app, registry=CollectorRegistry())
    for _ in range(2):
        metrics.register(shop.app, shown.registry)
    shop.enqueue("one")
    assert Scrape(shop.app.test_client().get("/metrics").text)("taskengine_tasks_enqueued_total", type="one") == 1


def test_two_engines_in_one_registry_are_summed(make_shop: MakeShop) -> None:
    """Their counters and their queues."""
    registry = CollectorRegistry()
    one, other = make_shop(), make_shop()
    for each in (one, other):
        metrics.register(each.app, registry)
        each.enqueue("both")
    seen = scraped(registry)
    assert seen("taskengine_tasks_enqueued_total", type="both") == 2
    assert seen("taskengine_tasks", type="both", status="PENDING") == 4, "each reads the same database, in which both are"


def test_switching_on_does_not_connect(make_app: MakeApp) -> None:
    """Neither making the app nor naming the metrics opens a connection."""
    with statements() as seen:
        host = make_app("postgresql+psycopg://nobody@127.0.0.1:1/none", TASKENGINE_METRICS=True)
        metrics.register(host.app, CollectorRegistry(auto_describe=True))
    assert seen == []

"""R15: how many tasks of a type run at once, on a node and in the cluster; two workers in one process are two nodes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from flask_taskengine import Limits
from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until


class Gauge:
    """Handlers that count how many of them run at once, and may be held inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[tuple[str, str]] = Counter()
        self.peak: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()
        self.go_on = threading.Event()
        self.go_on.set()

    def processor(self, task_type: str, node: str) -> Any:
        """Return a handler that counts for a type on a node, and for the type in the cluster."""
        keys = ((task_type, node), (task_type, "cluster"))

        def handle(payload: Any) -> None:
            with self._lock:
                self._running.update(keys)
                self.peak |= self._running
            self.go_on.wait(20)
            with self._lock:
                self._running.subtract(keys)
                self.done[task_type] += 1

        return handle

    def running(self, task_type: str, node: str = "cluster") -> int:
        return self._running[task_type, node]


@pytest.fixture
def gauge() -> Iterator[Gauge]:
    """Return a gauge whose handlers are let go at the end."""
    gauge = Gauge()
    yield gauge
    gauge.go_on.set()


def node(make_shop: MakeShop, gauge: Gauge, name: str, limits: dict[str, Limits | None], **config: Any) -> Shop:
    """Make a host that knows these types."""
    shop = make_shop(**config)
    for task_type, limit in limits.items():
        shop.engine.task(task_type, limits=limit)(gauge.processor(task_type, name))
    return shop


def enqueue(shop: Shop, task_type: str, number: int, **options: Any) -> list[int]:
    """Enqueue so many tasks of a type."""
    with shop.app.app_context():
        made = shop.engine.enqueue_many({"type": task_type, **options} for _ in range(number))
        shop.db.session.commit()
    return [one.id for one in made]


def counted(shop: Shop, status: str, task_type: str) -> int:
    """Count the rows of a type and status."""
    rows = shop.sql("SELECT count(*) FROM taskengine_task WHERE status = :status AND type = :type", status=status, type=task_type)
    return int(rows[0][0])


# --- per node ---------------------------------------------------------------------------------------------------------------


def test_r15_per_node(make_shop: MakeShop, gauge: Gauge, run_worker: RunWorker) -> None:
    """Each node runs as many as its limit, no more, and uses its other slots for other types."""
    shops = [node(make_shop, gauge, name, {"limited": Limits(per_node=2), "free": None}) for name in ("one", "other")]
    gauge.go_on.clear()
    ids = enqueue(shops[0], "limited", 20, priority=5) + enqueue(shops[0], "free", 4)
    for shop in shops:
        run_worker(shop, concurrency=4)
    wait_until(lambda: gauge.running("limited") == 4 and gauge.running("free") == 4, what="both nodes to be full")
    assert counted(shops[0], "RUNNING", "limited") == 4
    gauge.go_on.set()
    shops[0].wait_for_all(ids)
    assert gauge.peak["limited", "one"] == gauge.peak["limited", "other"] == 2


# --- cluster-wide -------------------------------------------------------------------------------------------------------------


def test_r15_cluster_wide(make_shop: MakeShop, gauge: Gauge, run_worker: RunWorker) -> None:
    """All nodes together run as many as the limit, never more while they race for every place, and all of them in the end."""
    shops = [node(make_shop, gauge, str(n), {"limited": Limits(cluster_wide=3), "free": None}) for n in range(3)]
    ids = enqueue(shops[0], "limited", 90, priority=5) + enqueue(shops[0], "free", 30)
    for shop in shops:
        run_worker(shop, concurrency=4)
    most = 0

    def finished() -> bool:
        nonlocal most
        most = max(most, counted(shops[0], "RUNNING", "limited"))
        return gauge.done == {"limited": 90, "free": 30}

    wait_until(finished, timeout=40, what=lambda: f"all of it: {gauge.done}", poll=0.002)
    shops[0].wait_for_all(ids)
    assert most <= 3
    assert gauge.peak["limited", "cluster"] <= 3


def test_r15_one_at_a_time_in_the_cluster(make_shop: MakeShop, gauge: Gauge, run_worker: RunWorker) -> None:
    """``cluster_wide=1`` runs the tasks of a type one after the other, in order, whatever node has them."""
    order: list[int] = []
    shops = [make_shop() for _ in range(2)]
    count = gauge.processor("serial", "any")

    def serial(payload: int) -> None:
        count(payload)
        order.append(payload)

    for shop in shops:
        shop.engine.task("serial", limits=Limits(cluster_wide=1))(serial)

    with shops[0].app.app_context():
        made = shops[0].engine.enqueue_many({"type": "serial", "payload": n} for n in range(25))
        shops[0].db.session.commit()
    for shop in shops:
        run_worker(shop, concurrency=4)
    shops[0].wait_for_all([one.id for one in made], timeout=40)
    assert order == list(range(25))
    assert gauge.peak["serial", "cluster"] == 1


def test_r15_of_both_limits_the_stricter_holds(make_shop: MakeShop, gauge: Gauge, run_worker: RunWorker) -> None:
    """Per node 2 and in the cluster 3: one node has 2, both together 3."""
    shops = [node(make_shop, gauge, name, {"limited": Limits(per_node=2, cluster_wide=3)}) for name in ("one", "other")]
    gauge.go_on.clear()
    ids = enqueue(shops[0], "limited", 12)
    run_worker(shops[0], concurrency=4)
    wait_until(lambda: gauge.running("limited") == 2, what="the node's limit")
    run_worker(shops[1], concurrency=4)
    wait_until(lambda: gauge.running("limited") == 3, what="the cluster's limit")
    gauge.go_on.set()
    shops[0].wait_for_all(ids)
    assert gauge.peak["limited", "one"] <= 2
    assert gauge.peak["limited", "other"] <= 2
    assert gauge.peak["limited", "cluster"] <= 3


def test_r15_of_nodes_that_differ_the_stricter_holds(make_shop: MakeShop, gauge: Gauge, run_worker: RunWorker) -> None:
    """A node of the next release has another limit, or none: while both live, the smaller one is in force for both."""
    strict = node(make_shop, gauge, "strict", {"limited": Limits(cluster_wide=2)})
    loose = node(make_shop, gauge, "loose", {"limited": Limits(cluster_wide=10)})
    gauge.go_on.clear()
    strict_worker = run_worker(strict, concurrency=6)
    wait_until(strict_worker.membership.registered.is_set, what="the strict node")
    ids = enqueue(strict, "limited", 12)
    run_worker(loose, concurrency=6)
    wait_until(lambda: gauge.running("limited") == 2, what="the stricter limit")
    gauge.go_on.set()
    strict.wait_for_all(ids, timeout=30)
    assert gauge.peak["limited", "cluster"] == 2


def test_r15_property_over_processor(make_shop: MakeShop, gauge: Gauge, run_worker: RunWorker) -> None:
    """``PROCESSOR_LIMITS`` wins key by key: here it lifts one limit, lowers another and leaves the third."""
    config = {"TASKENGINE_PROCESSOR_LIMITS": {"lifted": {"per_node": None}, "lowered": {"cluster_wide": 1}}}
    limits: dict[str, Limits | None] = {"lifted": Limits(per_node=1), "lowered": Limits(per_node=3), "left": Limits(per_node=2)}
    shop = node(make_shop, gauge, "one", limits, **config)
    gauge.go_on.clear()
    ids = [task_id for task_type in limits for task_id in enqueue(shop, task_type, 4)]
    run_worker(shop, concurrency=20)
    wait_until(lambda: [gauge.running(t) for t in limits] == [4, 1, 2], what="the limits in force")
    gauge.go_on.set()
    shop.wait_for_all(ids)
    assert [gauge.peak[t, "cluster"] for t in limits] == [4, 1, 2]


# --- what a limit does not hinder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [Limits(per_node=1), Limits(cluster_wide=1)])
def test_r15_a_saturated_type_never_slows_others_down(make_shop: MakeShop, gauge: Gauge, run_worker: RunWorker, limit: Limits) -> None:
    """A thousand waiting tasks of a higher priority at their limit: what has no limit starts as if they were not there."""
    shop = node(make_shop, gauge, "one", {"full": limit, "free": None}, TASKENGINE_POLL_INTERVAL=60)
    gauge.go_on.clear()
    enqueue(shop, "full", 1000, priority=9)
    run_worker(shop, concurrency=3)
    wait_until(lambda: gauge.running("full") == 1, what="the limit")
    first = enqueue(shop, "free", 1)
    wait_until(lambda: gauge.running("free") == 1, timeout=5, what="the other type to start")
    enqueue(shop, "free", 1)
    wait_until(lambda: gauge.running("free") == 2, timeout=5, what="the other type to start again")
    gauge.go_on.set()
    shop.wait_for_all(first)
    assert gauge.peak["full", "cluster"] == 1


@pytest.mark.parametrize("limit", [Limits(per_node=1), Limits(cluster_wide=1)])
def test_r15_a_place_that_becomes_free_is_taken(make_shop: MakeShop, gauge: Gauge, run_worker: RunWorker, limit: Limits) -> None:
    """Although nothing wakes the dispatchers and the poll interval is a minute, on this node or on another."""
    shops = [node(make_shop, gauge, name, {"limited": limit}, TASKENGINE_POLL_INTERVAL=60) for name in ("one", "other")]
    for shop in shops if limit.cluster_wide else shops[:1]:
        run_worker(shop, concurrency=2)
    ids = enqueue(shops[0], "limited", 12)
    shops[0].wait_for_all(ids, timeout=20)
    assert gauge.peak["limited", "cluster"] == 1


def test_r15_a_cancelled_task_counts_until_it_has_ended(make_shop: MakeShop, gauge: Gauge, run_worker: RunWorker) -> None:
    """A cancel request frees no place while the handler still runs."""
    shop = node(make_shop, gauge, "one", {"limited": Limits(cluster_wide=1)})
    gauge.go_on.clear()
    first, second = enqueue(shop, "limited", 2)
    run_worker(shop, concurrency=4)
    wait_until(lambda: gauge.running("limited") == 1, what="the first")
    with shop.app.app_context():
        shop.engine.cancel(first)
        shop.db.session.commit()
    wait_until(lambda: shop.task(first).cancel_requested_at, what="the request")
    assert shop.task(second).status == "PENDING"
    gauge.go_on.set()
    shop.wait_for(second)
    assert shop.wait_for(first).status == "CANCELLED"
    assert gauge.peak["limited", "cluster"] == 1

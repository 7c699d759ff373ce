"""Workers and a database that is away: nobody is lost, nobody gives up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flask_taskengine import TaskStatus
from tests.functional.conftest import Scene, children
from tests.support.databases import PostgresqlDatabases
from tests.support.hosts import MakeApp
from tests.support.postgresql import Cluster, MakeCluster
from tests.support.waiting import wait_until
from tests.support.worker import StartWorker

LEASE = 2


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    """Start a server that the test may stop."""
    return make_cluster(max_connections=40)


@pytest.fixture
def scene(cluster: Cluster, make_app: MakeApp, start_worker: StartWorker, tmp_path: Path) -> Iterator[Scene]:
    """Set up a host and its workers on the test's own server."""
    databases = PostgresqlDatabases(cluster.url(), "own")
    url = databases.create()
    with Scene(url, make_app(url), start_worker, tmp_path) as scene:
        yield scene


def pass_time(seconds: float) -> None:
    """Let more time pass than a lease lasts: there is no event for that nothing happens."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 5)


def forget_connections(scene: Scene) -> None:
    """Drop the test's own connections, which have died with the server."""
    with scene.app.app_context():
        scene.db.session.remove()
        scene.db.engine.dispose()


def test_r4_worker_waits_for_a_database_that_is_down(cluster: Cluster, scene: Scene) -> None:
    """A worker that starts before its database says so once, and begins when it answers."""
    task_id = scene.enqueue("noop")
    forget_connections(scene)
    cluster.stop()
    worker = scene.worker()
    worker.wait_for_log("connecting to the database: OperationalError")
    pass_time(1)
    cluster.start()
    scene.wait_for(task_id, TaskStatus.SUCCEEDED)
    worker.wait_for_log("wake-ups by")
    assert worker.log.count("; trying again") == 1
    assert worker.terminate() == 0


def test_r4_worker_that_waits_for_its_database_can_be_stopped(cluster: Cluster, scene: Scene) -> None:
    """A signal ends the wait."""
    cluster.stop()
    worker = scene.worker()
    worker.wait_for_log("connecting to the database")
    assert worker.terminate(timeout=5) == 0


@pytest.mark.parametrize("outage", ["stop", "pause"])
def test_r12_outage_beyond_the_lease_makes_nobody_an_orphan(cluster: Cluster, scene: Scene, outage: str) -> None:
    """After the database was away for longer than a lease, two workers find each other alive; a running task is completed once."""
    scene.worker()
    scene.worker()
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    (runner,) = scene.said("said")
    pass_time(LEASE + 1)
    forget_connections(scene)
    cluster.stop("immediate") if outage == "stop" else cluster.pause()
    pass_time(3 * LEASE)
    cluster.start() if outage == "stop" else cluster.resume()
    pass_time(2 * LEASE)
    scene.let_go("go")
    task = scene.wait_for(task_id, TaskStatus.SUCCEEDED, TaskStatus.DEAD)
    assert (task.status, task.attempts, task.claims) == (TaskStatus.SUCCEEDED, 1, 1)
    assert scene.effects() == [f"effect by {runner}"]


def test_r12_child_that_dies_during_an_outage_is_released_afterwards(cluster: Cluster, scene: Scene) -> None:
    """What the supervisor can not do while the database is away, it does when it is back, and the child is replaced."""
    worker = scene.worker(LEASE=60, HEARTBEAT_INTERVAL=1)
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    (first,) = scene.said("said")
    forget_connections(scene)
    cluster.stop()
    os.kill(int(first), signal.SIGKILL)
    wait_until(lambda: [child.pid for child in children(worker)] not in ([], [int(first)]))
    pass_time(1)
    cluster.start()
    scene.said("said", 2, timeout=15)
    scene.let_go("go")
    assert scene.wait_for(task_id, TaskStatus.SUCCEEDED).attempts == 2
    assert worker.terminate() == 0
    assert not psutil.pid_exists(worker.pid)

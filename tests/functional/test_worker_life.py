"""Starting and stopping a worker leaves nothing behind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import TaskStatus
from flask_taskengine.runtime.worker import Worker, WorkerOptions
from tests.support.hosts import Host, MakeApp, own_threads
from tests.support.waiting import wait_until


def connections(url: str) -> int:
    """Count the other connections to a PostgreSQL database."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        number: int = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).scalar_one()
    return number


def started(host: Host, **options: Any) -> Worker:
    """Start a worker in this process."""
    worker = Worker(host.engine.host(host.app), WorkerOptions(concurrency=2, **options))
    worker.beat_itself()
    worker.start()
    return worker


def test_r4_fifty_lives_leave_no_thread_and_no_connection(database_url: str, make_app: MakeApp) -> None:
    """A worker that has stopped has no thread and no connection; a statement can not follow (faults 110)."""
    host = make_app(database_url)
    host.engine.task("noop")(lambda payload: None)
    for life in range(50):
        with host.app.app_context():
            task_id = host.engine.enqueue("noop").id
            host.db.session.commit()
        worker = started(host)
        if life % 2:

            def done(wanted: int = task_id) -> bool:
                with host.app.app_context():
                    task = host.engine.get(wanted)
                return task is not None and task.status is TaskStatus.SUCCEEDED

            wait_until(done)
        assert worker.stop()
        wait_until(lambda: not own_threads(), 5, lambda: f"no threads, but there are {own_threads()}")
    with host.app.app_context():
        host.db.session.remove()
        host.db.engine.dispose()
    if database_url.startswith("postgresql"):
        wait_until(lambda: connections(database_url) == 0, 5)


def test_r4_stop_from_several_threads_waits_for_the_one_stop(sqlite_url: str, make_app: MakeApp) -> None:
    """Whoever stops a worker, also while it is being stopped, returns once it has stopped."""
    host = make_app(sqlite_url)
    release = threading.Event()
    running = threading.Event()

    def wait(payload: Any) -> None:
        running.set()
        release.wait(30)

    host.engine.task("wait")(wait)
    with host.app.app_context():
        host.engine.enqueue("wait")
        host.db.session.commit()
    worker = started(host)
    assert running.wait(10)
    with ThreadPoolExecutor(4) as pool:
        stops = [pool.submit(worker.stop, 30) for _ in range(4)]
        release.set()
        assert [stop.result(20) for stop in stops] == [True] * 4
    wait_until(lambda: not own_threads(), 5)


def test_r4_worker_that_never_started_can_be_stopped(sqlite_url: str, make_app: MakeApp) -> None:
    """Stopping what was only made ends its threads too."""
    host = make_app(sqlite_url)
    worker = Worker(host.engine.host(host.app), WorkerOptions(concurrency=2))
    assert worker.stop()
    wait_until(lambda: not own_threads(), 5)


@pytest.mark.postgresql
def test_r4_given_up_threads_end_by_themselves(postgresql_url: str, make_app: MakeApp) -> None:
    """A stop that gives threads up returns in a moment; they end when their handlers do, and record nothing."""
    host = make_app(postgresql_url, TASKENGINE_DEFAULT_TIMEOUT=None)
    release, running = threading.Event(), threading.Event()

    def deaf(payload: Any) -> None:
        running.set()
        while not release.is_set():
            try:
                release.wait(30)
            except BaseException:  # noqa: BLE001 - a handler that swallows every interrupt
                continue

    host.engine.task("deaf")(deaf)
    with host.app.app_context():
        task_id = host.engine.enqueue("deaf").id
        host.db.session.commit()
    worker = started(host)
    assert running.wait(10)
    assert worker.stop(0)
    assert all(name.startswith("taskengine-slot") for name in own_threads())
    with host.app.app_context():
        assert host.engine.get(task_id).status is TaskStatus.PENDING
    release.set()
    wait_until(lambda: not own_threads(), 5)
    with host.app.app_context():
        assert host.engine.get(task_id).status is TaskStatus.PENDING

"""R8: a type that no live node knows ends, one that some node knows is left to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask_taskengine import Task, TaskStatus
from flask_taskengine.runtime.worker import Worker, WorkerOptions
from flask_taskengine.store import nodes
from tests.support.hosts import Host, MakeApp
from tests.support.waiting import wait_until

SETTINGS: dict[str, Any] = {
    "TASKENGINE_UNKNOWN_TYPE_GRACE": 1,
    "TASKENGINE_DEFAULT_RETRY": {"max_attempts": 2, "base_backoff": 0.05, "max_backoff": 0.1},
    "TASKENGINE_POLL_INTERVAL": 0.2,
}


@contextmanager
def working(host: Host, types: frozenset[str] | None = None) -> Iterator[Worker]:
    """Run a worker in this process."""
    worker = Worker(host.engine.host(host.app), WorkerOptions(concurrency=2, types=types))
    worker.beat_itself()
    worker.start()
    yield worker
    worker.stop()


def enqueue(host: Host, task_type: str) -> int:
    """Enqueue and commit."""
    with host.app.app_context():
        made = host.engine.enqueue(task_type)
        host.db.session.commit()
        return int(made.id)


def task_of(host: Host, task_id: int) -> Task:
    """Read a task."""
    with host.app.app_context():
        task: Task | None = host.engine.get(task_id)
    assert task is not None
    return task


def test_r8_type_that_no_node_knows_ends_dead(database_url: str, make_app: MakeApp) -> None:
    """After the grace its tasks count failed attempts and end with an error that names the type and the known ones."""
    host = make_app(database_url, **SETTINGS)
    host.engine.task("known")(lambda payload: None)
    task_id = enqueue(host, "unheard of")
    with working(host) as worker:
        wait_until(lambda: task_of(host, task_id).status is TaskStatus.DEAD)
        task = task_of(host, task_id)
        assert task.attempts == 2
        assert "no live node knows the task type 'unheard of'; this node knows: known" in (task.last_error or "")
        assert (task.finished_at or task.created_at).timestamp() - task.created_at.timestamp() >= 1, "not before the grace"
        assert worker.dispatcher.foreign == {"unheard of"}


def test_r8_type_that_another_node_knows_is_left_to_it(database_url: str, make_app: MakeApp) -> None:
    """A rolling deployment burns no attempts: a live node knows the type, however long its tasks wait (faults 113)."""
    host = make_app(database_url, **SETTINGS)
    host.engine.task("known")(lambda payload: None)
    task_id, unknown = enqueue(host, "theirs"), enqueue(host, "unheard of")
    with working(host) as worker:
        row = {"id": "other", "label": "o", "host": "h", "pid": 1, "version": "1", "concurrency": 1, "types": ["theirs"], "limits": {}}
        with worker.database.engine.begin() as connection:
            nodes.register(connection, worker.database.tables, row)
        wait_until(lambda: task_of(host, unknown).status is TaskStatus.DEAD)
        assert task_of(host, task_id).attempts == 0
        with worker.database.engine.begin() as connection:
            nodes.remove(connection, worker.database.tables, ["other"])
        wait_until(lambda: task_of(host, task_id).status is TaskStatus.DEAD)


def test_r8_worker_for_some_types_knows_only_these(database_url: str, make_app: MakeApp) -> None:
    """A type that the app has, but that no live node was started for, ends too, and its handler is not called here."""
    host = make_app(database_url, **SETTINGS)
    called: list[Any] = []

    def excluded(payload: Any) -> None:
        called.append(payload)

    host.engine.task("known")(lambda payload: None)
    host.engine.task("excluded")(excluded)
    task_id = enqueue(host, "excluded")
    with working(host, frozenset({"known"})):
        wait_until(lambda: task_of(host, task_id).status is TaskStatus.DEAD)
    assert called == []
    assert "no live node knows the task type 'excluded'" in (task_of(host, task_id).last_error or "")


def test_r8_type_that_becomes_known_is_left_alone_again(database_url: str, make_app: MakeApp) -> None:
    """A type is no longer claimed by those who do not know it once somebody does."""
    host = make_app(database_url, **SETTINGS)
    task_id = enqueue(host, "late")
    with working(host) as worker:
        wait_until(lambda: task_of(host, task_id).status is TaskStatus.DEAD)
        row = {"id": "other", "label": "o", "host": "h", "pid": 1, "version": "1", "concurrency": 1, "types": ["late"], "limits": {}}
        with worker.database.engine.begin() as connection:
            nodes.register(connection, worker.database.tables, row)
        wait_until(lambda: not worker.dispatcher.foreign)

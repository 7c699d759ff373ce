"""What tests with real workers have in common."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from flask_taskengine import Task, TaskStatus
from tests.support.hosts import Host, MakeApp
from tests.support.waiting import wait_until
from tests.support.worker import Process, StartWorker, WorkerProcess

from .supervised import Effect

SUPERVISED = "tests.functional.supervised:create_app"


class Scene:
    """A database, a host that looks at it, and workers of the host in ``supervised``."""

    def __init__(self, url: str, host: Host, start_worker: StartWorker, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.app, self.db, self.engine = host
        self._start_worker = start_worker
        self._ends = ExitStack()
        self._processes: list[Process] = []
        with self.app.app_context():
            Effect.metadata.create_all(self.db.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def worker(self, *options: str, **env: Any) -> WorkerProcess:
        """Start a worker; keywords are settings without their prefix."""
        settings = {key if key.startswith("SUPERVISED_") else f"FLASK_TASKENGINE_{key}": str(value) for key, value in env.items()}
        return self.start(SUPERVISED, *options, **settings)

    def start(self, app: str, *options: str, **env: str) -> WorkerProcess:
        """Start a worker of another host; keywords are environment variables."""
        worker = self._start_worker(app, *options, url=self.url, env=env)
        self._processes.append(worker)
        return worker

    def process(self, *command: str, log_name: str = "process.log", **env: Any) -> Process:
        """Start a program that uses the host; keywords are settings without their prefix."""
        settings = {"FLASK_SQLALCHEMY_DATABASE_URI": self.url} | {f"FLASK_TASKENGINE_{key}": str(value) for key, value in env.items()}
        process = Process(sys.executable, "-m", *command, log=self.folder / log_name, env=settings)
        self._ends.callback(process.kill)
        self._processes.append(process)
        return process

    def nodes(self) -> list[str]:
        """Return the names of the nodes that are registered."""
        host = self.engine.host(self.app)
        tables = host.dialect(host.sql_engine().dialect.name).tables
        with host.sql_engine().connect() as connection:
            return list(connection.execute(tables.node.select().where(tables.node.c.expired_at.is_(None))).scalars())

    def enqueue(self, task_type: str, payload: Any = None, **options: Any) -> int:
        """Enqueue and commit."""
        with self.app.app_context():
            made = self.engine.enqueue(task_type, payload, **options)
            self.db.session.commit()
            return int(made.id)

    def task(self, task_id: int) -> Task:
        """Read a task."""
        with self.app.app_context():
            task: Task | None = self.engine.get(task_id)
        assert task is not None
        return task

    def wait_for(self, task_id: int, *statuses: TaskStatus, timeout: float = 20) -> Task:
        """Wait until a task has one of the statuses."""
        wait_until(lambda: self.task(task_id).status in statuses, timeout, lambda: f"{statuses}; it is {self.task(task_id)}\n{self.logs()}")
        return self.task(task_id)

    def logs(self) -> str:
        """Return what all programs have printed."""
        return "\n".join(f"--- {process.log_path.name}\n{process.log}" for process in self._processes)

    def effects(self) -> list[str]:
        """Return what handlers have written."""
        with self.app.app_context():
            return list(self.db.session.scalars(self.db.select(Effect.note).order_by(Effect.id)))

    def path(self, name: str) -> str:
        """Return the path of a file through which a test and a handler talk."""
        return str(self.folder / name)

    def said(self, name: str, lines: int = 1, timeout: float = 20) -> list[str]:
        """Wait until handlers have said so many lines, and return them."""
        path = self.folder / name
        wait_until(
            lambda: path.exists() and len(path.read_text().splitlines()) >= lines,
            timeout,
            lambda: f"{lines} lines in {name}\n{self.logs()}",
        )
        return path.read_text().splitlines()

    def let_go(self, name: str) -> None:
        """Let handlers go on that wait for a file."""
        (self.folder / name).touch()


def children(worker: WorkerProcess) -> list[psutil.Process]:
    """Return the processes that a worker's supervisor has started."""
    return psutil.Process(worker.pid).children()


@pytest.fixture
def sqlite_scene(sqlite_url: str, make_app: MakeApp, start_worker: StartWorker, tmp_path: Path) -> Iterator[Scene]:
    """Set up a host and its workers for what does not depend on the database."""
    with Scene(sqlite_url, make_app(sqlite_url), start_worker, tmp_path) as scene:
        yield scene


@pytest.fixture
def scene(database_url: str, make_app: MakeApp, start_worker: StartWorker, tmp_path: Path) -> Iterator[Scene]:
    """Set up a host and its workers on every database."""
    with Scene(database_url, make_app(database_url), start_worker, tmp_path) as scene:
        yield scene

"""Processes and servers are killed at random under load: no task is lost, and no effect in the database is doubled.

``TASKENGINE_TEST_KILLS`` sets how many strikes there are, ``TASKENGINE_TEST_SEED`` repeats a run that failed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from flask_taskengine import TaskStatus
from tests.support.databases import PostgresqlDatabases
from tests.support.hosts import MakeApp
from tests.support.postgresql import MakeCluster, StopMode
from tests.support.waiting import wait_until
from tests.support.worker import StartWorker, WorkerProcess

from .conftest import Scene, children
from .supervised import Effect

STRIKES = int(os.environ.get("TASKENGINE_TEST_KILLS", "6"))
SEED = int(os.environ.get("TASKENGINE_TEST_SEED", random.SystemRandom().randrange(10**6)))
HOST = "tests.functional.killed_host:create_app"
WAVE = 30
UNDERWAY = 20
"""So many tasks have not ended when a strike comes."""


class Battle:
    """Workers under load, and what strikes them."""

    def __init__(self, scene: Scene, workers: int, restart_server: Callable[[StopMode], None] | None) -> None:
        self.random = random.Random(SEED)
        self.restart_server = restart_server
        self.struck: list[str] = []
        self.committed: dict[int, str] = {}
        self._scene = scene
        self._workers = [self._start() for _ in range(workers)]
        self._enqueued = 0

    def enqueue(self) -> None:
        """Enqueue a wave of tasks in transactions of one to five, of which some are rolled back."""
        with self._scene.app.app_context():
            for _ in range(WAVE // 3):
                tasks = [self._one() for _ in range(self.random.randint(1, 5))]
                made = self._scene.engine.enqueue_many([{"type": task_type, "payload": payload} for task_type, payload in tasks])
                if self.random.random() < 0.2:
                    self._scene.db.session.rollback()
                    continue
                self._scene.db.session.commit()
                for one, (task_type, payload) in zip(made, tasks, strict=True):
                    self.committed[one.id] = "" if task_type == "idle" else str(payload["note"])

    def _one(self) -> tuple[str, dict[str, object]]:
        self._enqueued += 1
        task_type = self.random.choice(["write", "write", "stumble", "idle"])
        return task_type, {"note": f"effect {self._enqueued}", "work": self.random.choice([100, 10_000, 1_000_000])}

    def strike(self) -> None:
        """Kill something, and bring back what a process manager would."""
        ways = [self._kill_a_child, self._kill_a_worker, self._kill_a_supervisor, self._stop_a_worker]
        if self.restart_server is not None:
            ways.append(self._restart_the_server)
        way = self.random.choice(ways)
        self.struck.append(way.__name__.removeprefix("_"))
        way()

    def _kill_a_child(self) -> None:
        with contextlib.suppress(IndexError, psutil.NoSuchProcess):  # It has none while one is being replaced.
            self.random.choice(children(self.random.choice(self._workers))).kill()

    def _kill_a_worker(self) -> None:
        place = self._place()
        self._workers[place].kill()
        self._workers[place] = self._start()

    def _kill_a_supervisor(self) -> None:
        place = self._place()
        self._workers[place].send(signal.SIGKILL)
        self._workers[place] = self._start()

    def _stop_a_worker(self) -> None:
        place = self._place()
        self._workers[place].send(signal.SIGTERM)
        self._workers[place] = self._start()

    def _restart_the_server(self) -> None:
        assert self.restart_server is not None
        modes: list[StopMode] = ["fast", "immediate"]
        self.restart_server(self.random.choice(modes))

    def _place(self) -> int:
        return self.random.randrange(len(self._workers))

    def _start(self) -> WorkerProcess:
        return self._scene.start(HOST, "--processes", str(self.random.randint(1, 2)), "--concurrency", "3")

    def left(self) -> int:
        """Count the tasks that have not ended."""
        with self._scene.app.app_context():
            rows = self._scene.db.session.execute(sa.text("SELECT count(*) FROM taskengine_task WHERE finished_at IS NULL"))
            return int(rows.scalar_one())

    def account(self) -> tuple[Counter[str], Counter[str]]:
        """Return how often each effect should be there, and how often it is."""
        wanted = Counter(note for note in self.committed.values() if note)
        with self._scene.app.app_context():
            return wanted, Counter(self._scene.db.session.scalars(sa.select(Effect.note)))

    def ends(self) -> Counter[str]:
        """Count the committed tasks by status."""
        with self._scene.app.app_context():
            rows = self._scene.db.session.execute(sa.text("SELECT id, status FROM taskengine_task"))
            statuses = {task_id: status for task_id, status in rows}
        return Counter(statuses.pop(task_id, "lost") for task_id in self.committed) + Counter({"never committed": len(statuses)})


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.postgresql), pytest.param("sqlite", marks=pytest.mark.sqlite)])
def battle(
    request: pytest.FixtureRequest, make_cluster: MakeCluster, make_app: MakeApp, start_worker: StartWorker, tmp_path: Path
) -> Iterator[Battle]:
    """Set up four workers on a PostgreSQL server that may be killed too, or two on a SQLite file."""
    restart, workers = None, 2
    if request.param == "postgresql":
        cluster = make_cluster()
        restart, workers = cluster.restart, 4
        url = PostgresqlDatabases(cluster.url(), "own").create()
    else:
        url = request.getfixturevalue("sqlite_url")
    app = make_app(url, SQLALCHEMY_ENGINE_OPTIONS={"pool_pre_ping": True})
    with Scene(url, app, start_worker, tmp_path) as scene:
        yield Battle(scene, workers, restart)


def test_r12_nothing_is_lost_and_nothing_doubled_whatever_is_killed(battle: Battle) -> None:
    """Children, supervisors, whole machines and the server die under load; each committed task succeeds, with one effect."""
    for _ in range(STRIKES):
        battle.enqueue()
        wait_until(lambda: battle.left() <= UNDERWAY, 60, lambda: f"the tasks to end but {UNDERWAY}; {battle.left()} are left")
        battle.strike()
    said = f"seed {SEED}: {battle.struck}"
    wait_until(lambda: battle.left() == 0, 60, lambda: f"all tasks to end; {battle.left()} are left; {said}")
    assert battle.ends() == {TaskStatus.SUCCEEDED.value: len(battle.committed)}, said
    wanted, written = battle.account()
    assert written == wanted, said

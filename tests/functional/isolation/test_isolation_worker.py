"""What becomes of isolated attempts when their worker stops or dies, and what workers can not have them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from flask_taskengine import ConfigError
from flask_taskengine.runtime.zygote import start_isolation
from tests.support.shop import Shop
from tests.support.waiting import wait_until
from tests.support.worker import Process, WorkerProcess

from .conftest import StartIsolated, on_sqlite, pid_in, wait_until_gone
from .host import waits


@on_sqlite
def test_sigterm_lets_an_attempt_end(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """Within the grace period it ends as if nothing were, though the whole process group has got the signal."""
    worker = start_isolated("--concurrency", "1", SHUTDOWN_TIMEOUT="20s")
    task_id = shop.enqueue("waits", str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    processes = worker.processes()
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert psutil.pid_exists(pid)
    (tmp_path / "pid").unlink()
    assert worker.wait() == 0, worker.log
    assert shop.task(task_id).status == "SUCCEEDED"
    assert shop.effects() == [str(tmp_path / "pid")]
    wait_until_gone(*(process.pid for process in processes if process.pid != worker.pid))


@pytest.mark.parametrize("task_type", ["waits", "hangs.long"])
def test_beyond_the_grace_period_the_task_is_released(shop: Shop, start_isolated: StartIsolated, tmp_path: Path, task_type: str) -> None:
    """Interrupted or killed, it is PENDING again, uncounted, and nothing of it is left."""
    worker = start_isolated("--concurrency", "1", SHUTDOWN_TIMEOUT="300ms")
    task_id = shop.enqueue(task_type, str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    assert worker.terminate() == 0, worker.log
    assert not psutil.pid_exists(pid)
    assert (shop.task(task_id).status, shop.task(task_id).attempts, shop.effects()) == ("PENDING", 0, [])


@on_sqlite
@pytest.mark.parametrize("task_type", ["waits", "hangs.long", "starts.a.program"])
def test_no_process_outlives_its_worker(shop: Shop, start_isolated: StartIsolated, tmp_path: Path, task_type: str) -> None:
    """A worker process that is killed leaves neither its zygote nor attempts nor programs that they have started."""
    start_isolated("--concurrency", "1", TIMEOUT='{"starts.a.program": 60}')
    shop.enqueue(task_type, str(tmp_path / "pid"))
    started = psutil.Process(pid_in(tmp_path / "pid"))
    attempt = started.parents()[0] if task_type == "starts.a.program" else started
    zygote, worker = attempt.parents()[:2]
    worker.kill()
    wait_until_gone(started.pid, attempt.pid, zygote.pid, worker.pid)
    assert shop.effects() == []


@on_sqlite
def test_no_process_outlives_its_supervisor(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """Its end is a SIGTERM to the worker's process, which ends its attempts in the grace period."""
    supervisor = start_isolated("--concurrency", "1", SHUTDOWN_TIMEOUT="300ms")
    task_id = shop.enqueue("hangs.long", str(tmp_path / "pid"))
    pid_in(tmp_path / "pid")
    others = [process.pid for process in supervisor.processes() if process.pid != supervisor.pid]
    supervisor.send(signal.SIGKILL)
    wait_until_gone(*others)
    assert (shop.task(task_id).status, shop.task(task_id).attempts) == ("PENDING", 0)


@on_sqlite
def test_a_worker_whose_zygote_died_is_replaced(shop: Shop, start_isolated: StartIsolated, tmp_path: Path) -> None:
    """What ran there has failed and is tried again, what could not start is not blamed, and the next process has a zygote."""
    start_isolated("--concurrency", "1")
    task_id = shop.enqueue("dies.with.zygote", str(tmp_path / "pid"))
    assert shop.wait_for(task_id, timeout=30).status == "SUCCEEDED"
    assert [attempt["error_class"] for attempt in shop.attempts(task_id)] == ["ProcessDied"]
    after = shop.wait_for(shop.enqueue("effect", "after"), timeout=20)
    assert (after.status, after.attempts) == ("SUCCEEDED", 1)


def test_nothing_is_left_behind_while_it_works(shop: Shop, start_isolated: StartIsolated) -> None:
    """After a hundred attempts, some of which have died, there are no zombies, and no open files of each."""
    worker = start_isolated("--concurrency", "2")
    before = _files_after(shop, worker, 10)
    after = _files_after(shop, worker, 90)
    # The worker's own connections come and go; a leak would be of ninety.
    assert all(now < then + 9 for now, then in zip(after, before, strict=True)), (before, after)


def _files_after(shop: Shop, worker: WorkerProcess, number: int) -> list[int]:
    """Run attempts, of which every tenth dies, and count the open files of each process when nothing runs any more."""
    with shop.app.app_context():
        made = shop.engine.enqueue_many(
            {"type": "effect", "payload": f"e{number}-{n}"} if n % 10 else {"type": "dies", "payload": "exit"} for n in range(number)
        )
        shop.db.session.commit()
    for one in made:
        shop.wait_for(one.id, timeout=40)
    wait_until(lambda: len(worker.processes()) == 3, what="only supervisor, worker and zygote to be left")
    return [process.num_fds() for process in worker.processes()]


@on_sqlite
def test_a_worker_without_isolated_types_has_no_zygote(shop: Shop, start_isolated: StartIsolated) -> None:
    """A process more is there only where it is needed."""
    worker = start_isolated("--concurrency", "1", "--types", "here")
    shop.wait_for(shop.enqueue("here"), timeout=20)
    assert len(worker.processes()) == 2


@on_sqlite
def test_a_worker_in_a_process_with_threads_refuses_isolated_types(shop: Shop) -> None:
    """The error names the types and the remedy; given other types, the worker starts."""
    shop.engine.task("apart", isolation="process")(waits)
    shop.engine.task("here")(waits)
    with pytest.raises(ConfigError, match=r"task types apart have isolation='process'.*flask taskengine worker"):
        shop.worker()
    assert start_isolation(shop.host, frozenset({"here"})) is None
    assert shop.worker(types=frozenset({"here"})).dispatcher.types() == {"here"}


@on_sqlite
def test_the_embedded_worker_leaves_isolated_types_to_others(
    shop: Shop, start_isolated: StartIsolated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so when it starts, and runs the others."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # The lock of the host's embedded worker stands there.
    settings = {"FLASK_SQLALCHEMY_DATABASE_URI": str(shop.outside.url), "FLASK_TASKENGINE_EMBEDDED_WORKER": "true"}
    command = [sys.executable, "-m", "flask", "--app", "tests.functional.isolation.host:create_app", "run", "--port", "0"]
    server = Process(*command, log=tmp_path / "server.log", env=settings)
    try:
        apart, here = shop.enqueue("effect", "apart"), shop.enqueue("here")
        shop.wait_for(here, timeout=20)
        server.wait_for_log(r"the embedded worker leaves the task types .*\beffect\b.* to `flask taskengine worker`")
        assert shop.task(apart).status == "PENDING"
        start_isolated("--drain")
        shop.wait_for(apart, timeout=20)
    finally:
        server.kill()

"""The embedded worker: inside the web process, once per host, and nowhere else."""

from __future__ import annotations

import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from flask_taskengine import TaskStatus
from tests.support.hosts import MakeApp
from tests.support.waiting import wait_until
from tests.support.worker import Process

from .conftest import Scene

APP = "tests.functional.supervised:create_app"
STARTED = r"embedded worker .* \(pid (\d+)\)"


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put lock files where no other test has any."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def gunicorn(scene: Scene, *options: str, **settings: Any) -> tuple[Process, str]:
    """Start gunicorn with three workers; return it and its address."""
    given: dict[str, Any] = {"EMBEDDED_WORKER": "true", "SHUTDOWN_TIMEOUT": 2} | settings
    server = scene.process("gunicorn", "--workers", "3", "--bind", "127.0.0.1:0", *options, f"{APP}()", log_name="gunicorn.log", **given)
    return server, server.wait_for_log(r"Listening at: (http://\S+)")[1]


def flask_run(scene: Scene, *options: str, **settings: Any) -> tuple[Process, str]:
    """Start Flask's own server; return it and its address."""
    server = scene.process("flask", "--app", APP, *options, "run", "--port", "0", EMBEDDED_WORKER="true", **settings)
    return server, server.wait_for_log(r"Running on (http://\S+)")[1]


def get(address: str) -> str:
    """Make a request."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


def starts(server: Process) -> list[str]:
    """Return the process ids of the embedded workers that have started."""
    return [line.partition("(pid ")[2].partition(")")[0] for line in server.log.splitlines() if "embedded worker" in line]


@pytest.mark.parametrize(
    "options", [(), ("--preload",), ("--worker-class", "gthread", "--threads", "2")], ids=["sync", "preload", "gthread"]
)
def test_r2_embedded_worker_runs_once_under_gunicorn(sqlite_scene: Scene, options: tuple[str, ...]) -> None:
    """Of three web processes exactly one works, without any traffic; a request's task starts at once (faults P131)."""
    server, address = gunicorn(sqlite_scene, *options, POLL_INTERVAL=60)
    task_id = sqlite_scene.enqueue("effect", {"says": sqlite_scene.path("said")})
    sqlite_scene.wait_for(task_id, TaskStatus.SUCCEEDED)
    (worker,) = sqlite_scene.said("said")
    assert int(worker) in [child.pid for child in psutil.Process(server.pid).children()]
    for _ in range(6):
        sqlite_scene.wait_for(int(get(f"{address}/enqueue?says={sqlite_scene.path('said')}")), TaskStatus.SUCCEEDED)
    assert set(sqlite_scene.said("said", 7)) == {worker}
    assert starts(server) == [worker]
    assert len(sqlite_scene.nodes()) == 1
    assert server.terminate() == 0
    assert sqlite_scene.nodes() == []


def test_r12_another_process_takes_over_when_the_holder_dies(scene: Scene) -> None:
    """Within five seconds another web process works, and the dead one's tasks run again at once, counted."""
    server, _ = gunicorn(scene, LEASE=60, HEARTBEAT_INTERVAL=1)
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    (first,) = scene.said("said")
    os.kill(int(first), signal.SIGKILL)
    second = scene.said("said", 2, timeout=8)[1]
    scene.let_go("go")
    task = scene.wait_for(task_id, TaskStatus.SUCCEEDED)
    assert task.attempts == 2
    assert second != first
    assert server.terminate() == 0


def test_r4_embedded_worker_stops_with_its_server(sqlite_scene: Scene) -> None:
    """A running task may end; one that does not is released uncounted, and the server's exit code stays 0."""
    server, _ = gunicorn(sqlite_scene, SHUTDOWN_TIMEOUT=1)
    task_id = sqlite_scene.enqueue("effect", {"says": sqlite_scene.path("said"), "until": sqlite_scene.path("go")})
    sqlite_scene.said("said")
    assert server.terminate() == 0
    task = sqlite_scene.task(task_id)
    assert (task.status, task.attempts, task.claims) == (TaskStatus.PENDING, 0, 1)


def test_r2_embedded_worker_runs_once_under_the_reloader(sqlite_scene: Scene, tmp_path: Path) -> None:
    """Under ``flask run --debug`` only the process that serves works, before and after a reload."""
    reloaded = tmp_path / "reloaded.txt"
    reloaded.touch()
    server = sqlite_scene.process(
        *("flask", "--app", APP, "--debug", "run", "--port", "0", "--extra-files", str(reloaded)), EMBEDDED_WORKER="true"
    )
    server.wait_for_log(STARTED)
    sqlite_scene.wait_for(sqlite_scene.enqueue("effect", {"says": sqlite_scene.path("said")}), TaskStatus.SUCCEEDED)
    (first,) = sqlite_scene.said("said")
    assert int(first) != server.pid
    assert starts(server) == [first]
    os.utime(reloaded, (1, 1))
    os.utime(reloaded)
    wait_until(lambda: len(starts(server)) == 2, 20)
    sqlite_scene.wait_for(sqlite_scene.enqueue("effect", {"says": sqlite_scene.path("said")}), TaskStatus.SUCCEEDED)
    assert sqlite_scene.said("said", 2)[1] == starts(server)[1] != first
    assert len(sqlite_scene.nodes()) == 1


def test_r2_embedded_worker_runs_under_flask_run_and_ends_with_it(sqlite_scene: Scene) -> None:
    """Flask's server without its reloader is recognised too; SIGTERM stops the worker before it ends."""
    server, address = flask_run(sqlite_scene)
    sqlite_scene.wait_for(int(get(f"{address}/enqueue?says={sqlite_scene.path('said')}")), TaskStatus.SUCCEEDED)
    assert sqlite_scene.said("said") == [str(server.pid)] == starts(server)
    assert server.terminate() == 0
    assert sqlite_scene.nodes() == []


def test_r2_no_embedded_worker_in_shell_commands_and_workers(sqlite_scene: Scene) -> None:
    """Other commands of the app never start it, whatever they do; a worker command is enough of a worker."""
    task_id = sqlite_scene.enqueue("noop")
    code = "import flask; flask.current_app.test_client().get('/'); print('asked')"
    shell = sqlite_scene.process("flask", "--app", APP, "routes", EMBEDDED_WORKER="true", log_name="routes.log")
    assert shell.wait() == 0
    script = sqlite_scene.process("tests.functional.in_shell", code, EMBEDDED_WORKER="true", log_name="shell.log")
    assert script.wait() == 0
    assert "asked" in script.log
    assert sqlite_scene.task(task_id).status is TaskStatus.PENDING
    worker = sqlite_scene.worker("--drain", EMBEDDED_WORKER="true")
    assert worker.wait() == 0
    assert sqlite_scene.task(task_id).status is TaskStatus.SUCCEEDED
    assert "embedded worker" not in shell.log + script.log + worker.log


def test_r2_request_starts_it_under_an_unknown_server(sqlite_scene: Scene) -> None:
    """A server that is not recognised starts it with the first request."""
    server = sqlite_scene.process("tests.functional.unknown_server", EMBEDDED_WORKER="true", log_name="server.log")
    address = server.wait_for_log(r"listening at (http://\S+)")[1]
    task_id = sqlite_scene.enqueue("effect", {"says": sqlite_scene.path("said")})
    assert starts(server) == []
    assert get(address) == str(server.pid)
    sqlite_scene.wait_for(task_id, TaskStatus.SUCCEEDED)
    assert sqlite_scene.said("said") == [str(server.pid)]


def test_r2_testing_apps_have_no_embedded_worker(sqlite_url: str, make_app: MakeApp) -> None:
    """A host's own tests, which make requests by its test client, run no tasks behind their back."""
    app, _, engine = make_app(sqlite_url, TASKENGINE_EMBEDDED_WORKER=True)
    app.add_url_rule("/", view_func=lambda: "served")
    assert app.test_client().get("/").text == "served"
    assert engine.host(app).embedded.worker is None


def test_r2_database_in_memory_is_refused_with_a_word(sqlite_scene: Scene) -> None:
    """What can not work is said once; the server serves on."""
    sqlite_scene.url = "sqlite://"
    server, address = flask_run(sqlite_scene)
    server.wait_for_log("the embedded worker does not start: the database is in memory")
    assert get(address) == str(server.pid)


def test_r2_enqueue_wakes_workers_of_this_process_after_the_commit(sqlite_url: str, make_app: MakeApp) -> None:
    """Not before, since the row is not to be seen yet, and not at all for what is rolled back."""
    app, db, engine = make_app(sqlite_url)
    woken: list[str] = []
    engine.host(app).wakers.add(lambda: woken.append("woken"))
    with app.app_context():
        engine.enqueue("noop")
        db.session.rollback()
        engine.enqueue("noop")
        assert woken == []
        db.session.commit()
    assert woken == ["woken"]

"""Telemetry costs nothing until it is switched on: nothing is imported, and without the libraries everything else works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = ("opentelemetry", "prometheus_client", "prometheus_flask_exporter", "structlog")

PROGRAM = """
import importlib.abc, json, sys
sys.path.insert(0, {root!r})
HIDDEN = {hidden!r}

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])

sys.meta_path.insert(0, Hide())
from tests.support.databases import create_schema
from tests.support.hosts import make_host
from tests.support.waiting import wait_until
from flask_taskengine.runtime.worker import Worker, WorkerOptions

def run(**config):
    create_schema({url!r})
    host = make_host({url!r}, **config)
    ran = []

    @host.engine.task("one")
    def one(payload):
        ran.append(payload)

    @host.engine.on_succeeded
    def note(task_id):
        ran.append("noted")

    worker = Worker(host.engine.host(host.app), WorkerOptions(concurrency=2))
    worker.start()
    with host.app.app_context():
        host.engine.enqueue("one", 1)
        host.engine.enqueue_many([{{"type": "one", "payload": 2}}])
        host.db.session.commit()
    wait_until(lambda: ran.count("noted") == 2)
    worker.stop(5)
    return sorted(map(str, ran))

{body}
"""


def run(body: str, folder: Path, hidden: tuple[str, ...] = ()) -> Any:
    """Run a program in which some libraries can not be found, and return what it prints."""
    program = PROGRAM.format(root=str(ROOT), hidden=hidden, url=f"sqlite:///{folder / 'optional.sqlite'}", body=body)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_nothing_is_imported_while_it_is_off(tmp_path: Path) -> None:
    """An app that enqueues and a worker that runs know none of the libraries, though they are installed."""
    body = f"""
ran = run()
import flask_taskengine.cli
print(json.dumps([ran, sorted(name for name in sys.modules if name.partition(".")[0] in {LIBRARIES!r})]))
"""
    assert run(body, tmp_path) == [["1", "2", "noted", "noted"], []]


def test_everything_works_without_the_libraries(tmp_path: Path) -> None:
    """Uninstalled, they are not missed: tasks are enqueued and run, and the commands are there."""
    body = """
ran = run()
import flask_taskengine.cli
from flask_taskengine.telemetry import counting, logs, names, probe
print(json.dumps([ran, sorted(flask_taskengine.cli.taskengine.commands)[:1], logs.task_fields()]))
"""
    assert run(body, tmp_path, hidden=LIBRARIES) == [["1", "2", "noted", "noted"], ["bench"], {}]


@pytest.mark.parametrize(
    ("setting", "value", "library", "extra"),
    [("TRACING", "child", "opentelemetry", "opentelemetry"), ("METRICS", True, "prometheus_client", "prometheus")],
)
def test_switching_on_what_is_not_installed(tmp_path: Path, setting: str, value: object, library: str, extra: str) -> None:
    """One clear error when the app is made, with what to install."""
    body = f"""
from flask_taskengine import ConfigError
try:
    make_host({f"sqlite:///{tmp_path / 'x'}"!r}, TASKENGINE_{setting}={value!r})
except ConfigError as error:
    print(json.dumps(str(error)))
"""
    said = run(body, tmp_path, hidden=LIBRARIES)
    assert f"TASKENGINE_{setting} is on, but {library} is not installed: pip install 'flask-taskengine[{extra}]'" in said


def test_each_is_switched_on_alone(tmp_path: Path) -> None:
    """Tracing needs no Prometheus, and metrics need no OpenTelemetry."""
    pytest.importorskip("prometheus_client", reason="of the extra prometheus")
    pytest.importorskip("opentelemetry", reason="of the extra opentelemetry")
    program = "print(json.dumps(run(TASKENGINE_{})))"
    for setting, hidden in (("METRICS=True", "opentelemetry"), ("TRACING='child'", "prometheus_client")):
        folder = tmp_path / hidden
        folder.mkdir()
        assert run(program.format(setting), folder, hidden=(hidden,)) == ["1", "2", "noted", "noted"]


def test_processes_that_serve_are_summed_by_the_library(tmp_path: Path) -> None:
    """In the mode of ``prometheus_client`` for many processes, as under gunicorn, the counters of all of them come together."""
    pytest.importorskip("prometheus_client", reason="of the extra prometheus")
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    body = f"""
import os
os.environ["PROMETHEUS_MULTIPROC_DIR"] = {str(numbers)!r}
create_schema({f"sqlite:///{tmp_path / 'm.sqlite'}"!r})
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        host = make_host({f"sqlite:///{tmp_path / 'm.sqlite'}"!r}, TASKENGINE_METRICS=True)
        with host.app.app_context():
            for _ in range(3):
                host.engine.enqueue("one")
                host.db.session.commit()
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
lines = generate_latest(registry).decode().splitlines()
print(json.dumps([line for line in lines if line.startswith("taskengine_tasks_enqueued_total")]))
"""
    assert run(body, tmp_path) == ['taskengine_tasks_enqueued_total{type="one"} 6.0']

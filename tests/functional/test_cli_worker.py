"""``flask taskengine worker``: its options, and what it logs."""

from __future__ import annotations

import json
import re

import pytest

from ..support.hosts import Host, MakeApp
from ..support.worker import StartWorker

HOST = "tests.functional.cli_host:create_app"


@pytest.fixture
def host(make_app: MakeApp, database_url: str) -> Host:
    """Make a host that enqueues, on each database."""
    return make_app(database_url)


def enqueue(host: Host, *types: str) -> None:
    """Write a task of each type."""
    with host.app.app_context():
        for task_type in types:
            host.engine.enqueue(task_type, {"to": "you"})
        host.db.session.commit()


def test_a_worker_logs_one_line_for_each_event(host: Host, database_url: str, start_worker: StartWorker) -> None:
    """On the standard error, from INFO; a handler's own records say in which task they were made, and come once."""
    enqueue(host, "note", "refuse")
    worker = start_worker(HOST, "--drain", url=database_url)
    assert worker.wait() == 0
    said = [line.split(" ", 2)[2] for line in worker.log.splitlines() if "task " in line and " worker " not in line]
    assert sorted(re.sub(r"\d\.\d{3} s", "N s", line) for line in said) == [
        "ERROR   flask_taskengine.events: task 2 (refuse) is FAILED after attempt 1: Reject: not this",
        "INFO    flask_taskengine.events: task 1 (note) succeeded in N s",
        "INFO    host: task 1 (note), attempt 1: noted {'to': 'you'}",
    ]


def test_a_worker_logs_json_where_asked(host: Host, database_url: str, start_worker: StartWorker) -> None:
    """Every line is one object; events carry their fields, and DEBUG tells the start."""
    enqueue(host, "note")
    worker = start_worker(HOST, "--drain", "--log-json", "--log-level", "debug", url=database_url)
    assert worker.wait() == 0
    records = [json.loads(line) for line in worker.log.splitlines()]
    events = [record for record in records if record["logger"] == "flask_taskengine.events"]
    assert [record["level"] for record in events] == ["DEBUG", "INFO"]
    assert {(record["task_id"], record["task_type"], record["attempt"]) for record in events} == {(1, "note", 1)}
    assert events[0]["waited"] >= 0
    assert events[1]["duration"] >= 0


def test_a_worker_logs_by_the_hosts_rules_where_it_has_any(make_app: MakeApp, sqlite_url: str, start_worker: StartWorker) -> None:
    """Format and handlers stay the host's; only a level that was given is set, for the engine's own records."""
    enqueue(make_app(sqlite_url), "note", "refuse")
    worker = start_worker(f"{HOST}_that_logs", "--drain", "--log-level", "ERROR", url=sqlite_url)
    assert worker.wait() == 0
    assert sorted(line for line in worker.log.splitlines() if "plugin" not in line) == [
        "OWN ERROR task 2 (refuse) is FAILED after attempt 1: Reject: not this",
        "OWN INFO noted {'to': 'you'}",
    ]


def test_a_workers_options_come_from_the_environment_too(make_app: MakeApp, sqlite_url: str, start_worker: StartWorker) -> None:
    """Each under its own name; they do not disturb what the app reads from the environment."""
    host = make_app(sqlite_url)
    enqueue(host, "note", "refuse")
    env = {"TASKENGINE_WORKER_DRAIN": "1", "TASKENGINE_WORKER_TYPES": "note", "TASKENGINE_WORKER_LOG_LEVEL": "WARNING"}
    worker = start_worker(HOST, url=sqlite_url, env=env)
    assert worker.wait() == 0
    assert worker.log == ""
    with host.app.app_context():
        assert [str(host.engine.get(task_id).status) for task_id in (1, 2)] == ["SUCCEEDED", "PENDING"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-memory", "500"], "give one such as 500MiB or 2GiB"),
        (["--concurrency", "0"], "--concurrency"),
        (["--log-level", "LOUD"], "--log-level"),
    ],
)
def test_a_worker_refuses_options_that_are_wrong(start_worker: StartWorker, sqlite_url: str, options: list[str], said: str) -> None:
    """The exit code is 2, and the option is named."""
    worker = start_worker(HOST, *options, url=sqlite_url)
    assert worker.wait() == 2
    assert said in worker.log


def test_an_app_that_enqueues_only_runs_no_worker(start_worker: StartWorker, sqlite_url: str) -> None:
    """The setting is named in one line."""
    worker = start_worker(HOST, url=sqlite_url, env={"FLASK_TASKENGINE_ENABLED": "false"})
    assert worker.wait() == 1
    assert worker.log.startswith("Error: TASKENGINE_ENABLED is off")
    assert worker.log.count("\n") == 1

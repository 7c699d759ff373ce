"""``flask taskengine worker --probe``: what a worker shows of itself, from a process beside those that run tasks."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.hosts import MakeApp
from tests.support.shop import Shop
from tests.support.shop_fixtures import make_shop, shop
from tests.support.waiting import wait_until
from tests.support.worker import StartWorker, WorkerProcess

__all__ = ["make_shop", "shop"]

HOST = "tests.functional.probed_host:create_app"


class Probed:
    """A worker with a probe."""

    def __init__(self, worker: WorkerProcess, port: int) -> None:
        self.worker = worker
        self.port = port

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Return the status and the body of an answer; 0 where nobody answers."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def processes(self) -> list[int]:
        """Return the processes that run tasks."""
        return [process["pid"] for process in json.loads(self.get("/live")[1])["processes"]]

    def lookout(self) -> psutil.Process:
        """Return the process that answers."""
        [lookout] = [child for child in psutil.Process(self.worker.pid).children() if child.pid not in self.processes()]
        return lookout


Start = Callable[..., Probed]


@pytest.fixture
def start(shop: Shop, database_url: str, start_worker: StartWorker) -> Start:
    """Start a worker with a probe, and wait until it is ready."""

    def begin(*options: str, metrics: bool = True, ready: bool = True) -> Probed:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {"FLASK_TASKENGINE_METRICS": str(metrics)}
        probed = Probed(start_worker(HOST, "--probe", f"127.0.0.1:{port}", *options, url=database_url, env=env), port)
        if ready:
            wait_until(lambda: probed.get("/ready")[0] == 200, 30, lambda: f"{probed.get('/ready')}\n{probed.worker.log}")
        return probed

    return begin


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_r05_the_processes_of_a_worker_are_summed(shop: Shop, start: Start) -> None:
    """A scrape of two processes under load never goes back, and says what the rows say, also of processes that were killed.

    What a killed process had committed in its last instant and not yet told is nowhere: so the kills come one by one.
    """
    pytest.importorskip("prometheus_client", reason="of the extra prometheus")
    from tests.support.scrapes import Scrape

    shop.enqueue_many(*["noop"] * 200, *["fails"] * 20)
    probed = start("--processes", "2", "--concurrency", "4")
    seen = 0.0

    def outcomes() -> dict[tuple[str, str], float]:
        nonlocal seen
        found = Scrape(probed.get("/metrics")[1]).by("taskengine_attempts_finished_total", "type", "outcome")
        before, seen = seen, sum(found.values())
        assert seen >= before, "a counter went back"
        return found

    def agrees() -> bool:
        tasks = shop.tasks()
        rows = Counter((task.type, task.status.lower()) for task in tasks)
        return all(task.finished_at for task in tasks) and {key: n for key, n in outcomes().items() if key[1] != "retried"} == rows

    wait_until(agrees, 40, lambda: f"{outcomes()}\n{probed.worker.log}")
    for max_attempts in (2, 1, 2, 1):
        shop.enqueue("kills", {"times": 1}, max_attempts=max_attempts)
        wait_until(agrees, 30, lambda: f"{outcomes()}\n{probed.worker.log}")
    assert outcomes() == {("noop", "succeeded"): 200, ("fails", "retried"): 20, ("fails", "dead"): 20} | {
        ("kills", "retried"): 2,
        ("kills", "succeeded"): 2,
        ("kills", "dead"): 2,
    }
    wait_until(lambda: Scrape(probed.get("/metrics")[1])("taskengine_slots") == 8, 20)
    scrape = Scrape(probed.get("/metrics")[1])
    assert scrape.of("taskengine_tasks_claimed_total") == scrape.of("taskengine_attempts_started_total")
    assert scrape.of("taskengine_attempts_started_total") == {"noop": 200, "fails": 40, "kills": 6}
    assert scrape.by("taskengine_tasks_requeued_total", "type", "reason") == {("kills", "orphaned"): 2}
    assert scrape.of("taskengine_run_seconds_count") == {"noop": 200, "fails": 40, "kills": 2}
    assert scrape("taskengine_in_flight") == 0
    probed.worker.terminate()


def test_counters_survive_the_change_of_processes(shop: Shop, start: Start) -> None:
    """Processes that are replaced after some tasks go on counting where the last ones stopped."""
    pytest.importorskip("prometheus_client", reason="of the extra prometheus")
    from tests.support.scrapes import Scrape

    ids = shop.enqueue_many(*["noop"] * 20)
    probed = start("--max-tasks", "5", "--concurrency", "2")
    shop.wait_for_all(ids, timeout=60)
    wait_until(
        lambda: (
            Scrape(probed.get("/metrics")[1]).by("taskengine_attempts_finished_total", "type", "outcome") == {("noop", "succeeded"): 20}
        ),
        20,
        lambda: probed.get("/metrics")[1],
    )
    probed.worker.terminate()


def test_metrics_are_shown_only_where_they_are_on(start: Start) -> None:
    """Without the setting nothing is counted, and the answer says how to switch it on."""
    probed = start(metrics=False)
    status, body = probed.get("/metrics")
    assert status == 404
    assert "TASKENGINE_METRICS" in body
    probed.worker.terminate()


# --- probes -----------------------------------------------------------------------------------------------------------


def test_live_and_ready(shop: Shop, start: Start, tmp_path: Path) -> None:
    """Live while the supervisor works; ready while tasks are claimed, and no more once the worker was told to stop."""
    task_id = shop.enqueue("waits", str(tmp_path / "go"))
    probed = start("--processes", "2")
    status, body = probed.get("/ready")
    assert (status, json.loads(body)["status"], len(json.loads(body)["processes"])) == (200, "UP", 2)
    assert probed.get("/live")[0] == 200
    shop.wait_for(task_id, "RUNNING", timeout=20)
    probed.worker.send(signal.SIGTERM)
    wait_until(lambda: probed.get("/ready")[0] == 503, 20)
    assert probed.get("/live")[0] == 200
    (tmp_path / "go").touch()
    assert probed.worker.wait() == 0
    assert probed.get("/live")[0] == 0
    assert shop.task(task_id).status == "SUCCEEDED"


def test_other_paths_and_methods(start: Start) -> None:
    """HEAD has no body; what is not there says what is; a query changes nothing."""
    probed = start()
    assert probed.get("/ready", "HEAD") == (200, "")
    status, body = probed.get("/")
    assert status == 404
    assert "/live, /ready, /metrics" in body
    assert probed.get("/live?x=1")[0] == 200
    probed.worker.terminate()


def test_the_answering_process_is_replaced(shop: Shop, start: Start) -> None:
    """When it dies another one answers at the same port, and nothing that was counted is lost; tasks do not notice."""
    probed = start()
    ids = shop.enqueue_many(*["noop"] * 10)
    shop.wait_for_all(ids)
    before = probed.processes()
    lookout = probed.lookout()
    lookout.kill()
    wait_until(lambda: probed.get("/live")[0] == 200 and probed.lookout().pid != lookout.pid, 20)
    assert probed.processes() == before
    probed.worker.terminate()


def test_nothing_is_left_when_the_supervisor_is_killed(start: Start) -> None:
    """The process that answers does not outlive the supervisor."""
    probed = start()
    lookout = probed.lookout()
    probed.worker.send(signal.SIGKILL)
    wait_until(lambda: not lookout.is_running() or lookout.status() == psutil.STATUS_ZOMBIE, 20)
    assert probed.get("/live")[0] == 0


def test_a_port_that_is_taken_is_said_at_once(make_app: MakeApp, sqlite_url: str, start_worker: StartWorker) -> None:
    """Before anything starts, with the remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        worker = start_worker(HOST, "--probe", f"127.0.0.1:{taken.getsockname()[1]}", url=sqlite_url)
        assert worker.wait() != 0
    assert re.search(r"--probe can not listen on 127.0.0.1:\d+ .*give a free port", worker.log), worker.log


@pytest.mark.parametrize("address", ["x", "70000", "localhost:", ":1:2"])
def test_a_wrong_address_is_refused(sqlite_url: str, start_worker: StartWorker, address: str) -> None:
    """With what to give instead."""
    worker = start_worker(HOST, "--probe", address, url=sqlite_url)
    assert worker.wait() == 2
    assert "is no address: give a port" in worker.log


def test_a_worker_that_drains_ends_with_its_probe(shop: Shop, start: Start) -> None:
    """The process that answers does not keep it from ending."""
    ids = shop.enqueue_many(*["noop"] * 5)
    probed = start("--drain", ready=False)
    assert probed.worker.wait() == 0
    assert {shop.task(task_id).status for task_id in ids} == {"SUCCEEDED"}


# --- events of the supervisor -----------------------------------------------------------------------------------------


def test_a_death_with_its_process_is_told_in_another_process(shop: Shop, database_url: str, start_worker: StartWorker) -> None:
    """No code of the app runs in the supervisor: a process that runs tasks is told of those that died with another one."""
    task_id = shop.enqueue("kills", {"times": 2})
    worker = start_worker(HOST, url=database_url)
    assert shop.wait_for(task_id, timeout=30).status == "DEAD"
    told = int(worker.wait_for_log(r"process (\d+) mourns kills")[1])
    assert told != worker.pid
    worker.terminate()


def test_what_nobody_is_left_to_be_told_is_told_at_the_end(shop: Shop, database_url: str, start_worker: StartWorker) -> None:
    """A worker that stops announces itself what its last process left behind."""
    task_id = shop.enqueue("waits", "/nowhere")
    worker = start_worker(HOST, "--processes", "1", url=database_url)
    shop.wait_for(task_id, "RUNNING", timeout=20)
    shop.sql(f"UPDATE taskengine_task SET max_attempts = 1 WHERE id = {task_id}")
    worker.send(signal.SIGTERM)
    worker.wait_for_log("have .* to end")
    [child] = psutil.Process(worker.pid).children()
    child.kill()
    assert worker.wait() == 0
    assert shop.task(task_id).status == "DEAD"
    assert "mourns waits" in worker.log

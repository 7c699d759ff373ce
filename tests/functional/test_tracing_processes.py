"""One trace across real processes: from the HTTP request through the enqueue to the run and its SQL."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.instrumentation.flask", reason="of the extra opentelemetry")
pytest.importorskip("opentelemetry.instrumentation.psycopg", reason="of the extra test")
pytest.importorskip("opentelemetry.instrumentation.sqlite3", reason="of the extra test")

from flask_taskengine.telemetry import names
from tests.support.shop import Shop
from tests.support.shop_fixtures import make_shop, shop
from tests.support.spans import Seen, collected, spans_in
from tests.support.waiting import wait_until
from tests.support.worker import Process, StartWorker, WorkerProcess

__all__ = ["make_shop", "shop"]

HOST = "tests.functional.traced_host:create_app"


class Deployment:
    """A web process and workers of the traced host, on one database."""

    def __init__(self, url: str, folder: Path, start_worker: StartWorker) -> None:
        self.spans_path = folder / "spans"
        self._folder = folder
        self._url = url
        self._start_worker = start_worker
        self._env = {"TRACED_FILE": str(self.spans_path), "FLASK_SQLALCHEMY_DATABASE_URI": url}

    def worker(self, *options: str, tracing: str = "child") -> WorkerProcess:
        """Start a worker."""
        return self._start_worker(HOST, *options, env=self._env | {"FLASK_TASKENGINE_TRACING": tracing})

    def web(self) -> Process:
        """Start the web process; it takes any free port."""
        command = [sys.executable, "-m", "flask", "--app", HOST, "run", "--port", "0"]
        return Process(*command, log=self._folder / "web.log", env=self._env | {"FLASK_TASKENGINE_TRACING": "child"})

    def spans(self, kind: str | None = None) -> list[Seen]:
        """Read the spans of all processes, oldest first."""
        return [span for span in spans_in(self.spans_path) if kind in (None, span.kind)]

    def runs(self, number: int) -> list[Seen]:
        """Wait for so many runs."""
        wait_until(lambda: len(self.spans("CONSUMER")) >= number, 30, lambda: str(self.spans("CONSUMER")))
        return self.spans("CONSUMER")


@pytest.fixture
def deployment(shop: Shop, database_url: str, tmp_path: Path, start_worker: StartWorker) -> Deployment:
    """Make the traced host's table."""
    shop.sql("CREATE TABLE shipped (task_id BIGINT)")
    return Deployment(database_url, tmp_path, start_worker)


@pytest.fixture
def web(deployment: Deployment) -> Iterator[str]:
    """Return the address of the web process."""
    process = deployment.web()
    yield process.wait_for_log(r"Running on (http://\S+)")[1]
    process.kill()


def test_r03_one_trace_from_the_request_to_the_sql_of_the_run(deployment: Deployment, web: str, shop: Shop) -> None:
    """Request, enqueue and its INSERT in one process; run and its INSERT in another: each the child of what caused it."""
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace_id}-{span_id}-01"}
    request = urllib.request.Request(f"{web}/orders/0", method="POST", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        task_id = json.load(answer)["id"]
    worker = deployment.worker()
    shop.wait_for(task_id)
    [run] = deployment.runs(1)
    worker.terminate()
    spans = {span.span_id: span for span in deployment.spans()}
    chain = ["process ship", "enqueue ship", "POST /orders/<int:number>"]
    seen = [run]
    while seen[-1].parent_id in spans:
        seen.append(spans[seen[-1].parent_id])
    assert [span.name for span in seen] == chain
    assert seen[-1].parent_id == int(span_id, 16)
    assert [span.kind for span in seen] == ["CONSUMER", "PRODUCER", "SERVER"]
    assert {span.trace_id for span in seen} == {int(trace_id, 16)}
    assert seen[0].pid != seen[1].pid == seen[2].pid
    inserts = [span for span in spans.values() if span.kind == "CLIENT" and span.name.upper().startswith("INSERT")]
    assert {span.parent_id for span in inserts} == {run.span_id, seen[1].span_id}
    strange = [span for span in spans.values() if span.trace_id != int(trace_id, 16)]
    assert strange == [], "the engine's own statements make no traces"
    assert "shipping for tenant 0" in worker.log
    assert run.attributes[names.TASK_OUTCOME] == "succeeded"


def test_r03_parents_are_right_after_retries(deployment: Deployment, web: str, shop: Shop) -> None:
    """Every attempt, whichever process runs it, is a child of the one enqueue."""
    workers = [deployment.worker("--concurrency", "1") for _ in range(2)]
    request = urllib.request.Request(f"{web}/orders/2", method="POST")
    with urllib.request.urlopen(request, timeout=20) as answer:
        task_id = json.load(answer)["id"]
    shop.wait_for(task_id, timeout=30)
    runs = deployment.runs(3)
    for worker in workers:
        worker.terminate()
    [sent] = deployment.spans("PRODUCER")
    assert [run.parent_id for run in runs] == [sent.span_id] * 3
    assert [run.attributes[names.TASK_ATTEMPT] for run in runs] == [1, 2, 3]
    assert [run.attributes[names.TASK_OUTCOME] for run in runs] == ["retried", "retried", "succeeded"]
    assert [run.status for run in runs] == ["ERROR", "ERROR", "UNSET"]


def test_r03_parents_are_right_after_a_rescue(deployment: Deployment, shop: Shop, database_url: str) -> None:
    """The run after the death of a process, in another process, is a child of the enqueue, which was in a third one."""
    from opentelemetry import trace

    from tests.support.hosts import close_host, make_host

    with collected() as here:
        host = make_host(database_url, TASKENGINE_TRACING="child")
        with host.app.app_context(), trace.get_tracer("script").start_as_current_span("script"):
            task_id = host.engine.enqueue("ship", {"kills": 1}).id
            host.db.session.commit()
        close_host(host)
    worker = deployment.worker()
    assert shop.wait_for(task_id, timeout=30).status == "SUCCEEDED"
    [run] = deployment.runs(1)
    worker.terminate()
    [sent] = [span for span in here if span.kind == "PRODUCER"]
    assert (run.trace_id, run.parent_id) == (sent.trace_id, sent.span_id)
    assert run.attributes[names.TASK_ATTEMPT] == 2
    assert shop.attempts(task_id)[0]["error_class"] == "LeaseLostError"


def test_r03_link_mode_in_a_worker(deployment: Deployment, web: str, shop: Shop) -> None:
    """A worker that links begins a trace for each run, though the web process does not."""
    request = urllib.request.Request(f"{web}/orders/0", method="POST")
    urllib.request.urlopen(request, timeout=20).close()
    worker = deployment.worker(tracing="link")
    [run] = deployment.runs(1)
    worker.terminate()
    [sent] = deployment.spans("PRODUCER")
    assert (run.parent_id, run.links) == (None, [sent.span_id])
    assert run.trace_id != sent.trace_id
    assert "shipping for tenant 0" in worker.log


def test_r03_isolated_attempt_belongs_to_its_trace(deployment: Deployment, shop: Shop) -> None:
    """What a handler does in a process of its own is a child of its run, which the worker records; so are its events told there."""
    shop.sql("INSERT INTO taskengine_task (type) VALUES ('pack')")
    worker = deployment.worker()
    runs = {run.attributes[names.TASK_TYPE]: run for run in deployment.runs(2)}
    worker.terminate()
    [packing] = [span for span in deployment.spans() if span.name == "packing"]
    [sent] = deployment.spans("PRODUCER")
    assert packing.parent_id == runs["pack"].span_id
    assert sent.parent_id == packing.span_id
    assert runs["ship"].parent_id == sent.span_id
    assert packing.pid == sent.pid != runs["pack"].pid == runs["ship"].pid
    assert runs["pack"].attributes[names.TASK_OUTCOME] == "succeeded"
    assert f"process {runs['pack'].pid} heard of ship" in worker.log

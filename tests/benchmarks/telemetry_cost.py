"""What telemetry costs: no-op tasks per second with both traces and metrics on, beside off, in one interleaved run.

Run: ``python -m tests.benchmarks.telemetry_cost [--tasks 5000] [--repeats 5]``. Traces are sampled at 1 %, one trace per task.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_taskengine import TaskEngine

SWITCHES = ("off", "metrics", "traces", "both")

db = SQLAlchemy()
engine = TaskEngine()


@engine.task("noop")
def noop(payload: Any) -> None:
    """Do nothing."""


def create_app() -> Flask:
    """Make the host; ``COST_SWITCH`` says what is on."""
    switch = os.environ["COST_SWITCH"]
    app = Flask("cost")
    app.config.from_prefixed_env()
    app.config["TASKENGINE_METRICS"] = switch in ("metrics", "both")
    app.config["TASKENGINE_TRACING"] = "child" if switch in ("traces", "both") else False
    if switch in ("traces", "both"):
        _provide_traces()
    db.init_app(app)
    engine.init_app(app)
    return app


def _provide_traces() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.01)))
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)


def measure(url: str, folder: Path, switch: str, tasks: int) -> tuple[float, float]:
    """Enqueue and drain; return tasks per second from the first claim to the last end, and CPU microseconds per task of the worker."""
    from tests.support.worker import WorkerProcess

    env = {"COST_SWITCH": switch, "FLASK_SQLALCHEMY_DATABASE_URI": url}
    outside = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with outside.connect() as connection:
        connection.execute(sa.text("TRUNCATE taskengine_task"))
        _enqueue(env, folder, tasks)
        connection.execute(sa.text("VACUUM ANALYZE taskengine_task"))
        options = ["--concurrency", "10", "--log-level", "WARNING", *(["--probe", "127.0.0.1:0"] if switch in ("metrics", "both") else [])]
        worker = WorkerProcess("tests.benchmarks.telemetry_cost:create_app", *options, log=folder / "worker.log", env=env)
        left = sa.text("SELECT count(*) FROM taskengine_task WHERE finished_at IS NULL")
        while connection.execute(left).scalar_one():
            if worker.exit_code is not None:
                sys.exit(worker.log)
            time.sleep(0.2)
        cpu = max(sum(child.cpu_times()[:2]) for child in psutil.Process(worker.pid).children())
        worker.terminate()
        span = "SELECT extract(epoch FROM max(finished_at) - min(claimed_at)) FROM taskengine_task"
        seconds = float(connection.execute(sa.text(span)).scalar_one())
    outside.dispose()
    return tasks / seconds, cpu / tasks * 1e6


def _enqueue(env: dict[str, str], folder: Path, tasks: int) -> None:
    """Enqueue one by one, so that each task has a trace of its own, in a process that is set up as the worker is."""
    from tests.support.worker import Process

    code = (
        "from tests.benchmarks.telemetry_cost import *\n"
        f"with create_app().app_context():\n    for n in range({tasks}):\n        engine.enqueue('noop', n)\n    db.session.commit()\n"
    )
    enqueuing = Process(sys.executable, "-c", code, log=folder / "enqueue.log", env=env)
    if enqueuing.wait(300) != 0:
        sys.exit(enqueuing.log)


def main() -> None:
    """Go round all switches, as often as asked, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--switches", default="off,both", help=f"of {', '.join(SWITCHES)}")
    given = parser.parse_args()
    switches = given.switches.split(",")

    from tests.support.databases import PostgresqlDatabases
    from tests.support.postgresql import Cluster

    seen: dict[str, list[tuple[float, float]]] = {switch: [] for switch in switches}
    with Cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        url = PostgresqlDatabases(cluster.url(), "cost").create()
        measure(url, Path(folder), switches[0], given.tasks // 5)
        for repeat in range(given.repeats):
            for switch in switches[repeat % len(switches) :] + switches[: repeat % len(switches)]:
                seen[switch].append(measure(url, Path(folder), switch, given.tasks))
                print(f"{switch:8} {seen[switch][-1][0]:8.0f} tasks/s {seen[switch][-1][1]:7.0f} µs CPU", flush=True)
    print()
    base = [statistics.median(column) for column in zip(*seen[switches[0]], strict=True)]
    for switch in switches:
        rate, cpu = (statistics.median(column) for column in zip(*seen[switch], strict=True))
        print(f"{switch:8} median {rate:6.0f} tasks/s ({rate / base[0] - 1:+.1%}), {cpu:5.0f} µs CPU per task ({cpu / base[1] - 1:+.1%})")


if __name__ == "__main__":
    main()

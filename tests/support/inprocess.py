"""Workers that run in the test's own process, and beat for themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from flask_taskengine.runtime.worker import Worker
from tests.support.shop import Shop


class StartWorkerHere(Protocol):
    """What the fixture ``start_worker_here`` returns."""

    def __call__(self, shop: Shop, concurrency: int = 4, **options: Any) -> Worker: ...


@pytest.fixture
def start_worker_here() -> Iterator[StartWorkerHere]:
    """Start workers in this process; they are stopped at the end of the test."""
    workers: list[Worker] = []

    def start(shop: Shop, concurrency: int = 4, **options: Any) -> Worker:
        worker = shop.worker(concurrency, **options)
        workers.append(worker)
        worker.beat_itself()
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.stop(0)

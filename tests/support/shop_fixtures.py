"""A shop on the database of the test, and workers that run in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from flask_taskengine.runtime.worker import Worker
from tests.support.hosts import MakeApp
from tests.support.shop import Events, Shop, events_of, open_shop


class MakeShop(Protocol):
    """What the fixture ``make_shop`` returns."""

    def __call__(self, **config: Any) -> Shop: ...


class RunWorker(Protocol):
    """What the fixture ``run_worker`` returns."""

    def __call__(self, shop: Shop, concurrency: int = 4, *, beats: bool = False, **options: Any) -> Worker: ...


@pytest.fixture
def make_shop(make_app: MakeApp, database_url: str) -> Iterator[MakeShop]:
    """Make hosts on the database of this test, each with its settings."""
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(open_shop(make_app, database_url, **config))


@pytest.fixture
def shop(make_shop: MakeShop) -> Shop:
    """Make a host with the default settings."""
    return make_shop()


@pytest.fixture
def run_worker() -> RunWorker:
    """Start workers in this process, which beat for themselves where that matters; their shop stops them."""

    def run(shop: Shop, concurrency: int = 4, *, beats: bool = False, **options: Any) -> Worker:
        worker = shop.worker(concurrency, **options)
        if beats:
            worker.beat_itself()
        worker.start()
        return worker

    return run


@pytest.fixture
def events(shop: Shop) -> Iterator[Events]:
    """Collect what the engine of ``shop`` announces."""
    with events_of(shop.engine) as events:
        yield events

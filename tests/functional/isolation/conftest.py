"""A shop, and workers in processes of their own whose tasks have processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from tests.support.shop import Shop
from tests.support.shop_fixtures import make_shop, shop
from tests.support.waiting import wait_until
from tests.support.worker import StartWorker, WorkerProcess

__all__ = ["make_shop", "shop"]

on_sqlite = pytest.mark.parametrize("database_url", [pytest.param("sqlite", marks=pytest.mark.sqlite)], indirect=True)
"""For what does not depend on the database."""
on_postgresql = pytest.mark.parametrize("database_url", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True)


class StartIsolated(Protocol):
    """What the fixture ``start_isolated`` returns."""

    def __call__(self, *options: str, **settings: str) -> WorkerProcess: ...


@pytest.fixture
def start_isolated(shop: Shop, start_worker: StartWorker) -> StartIsolated:
    """Start a worker for the shop's database that runs the tasks of ``host.py``; settings are given without their prefix."""

    def start(*options: str, **settings: str) -> WorkerProcess:
        env: Mapping[str, str] = {f"FLASK_TASKENGINE_{name}": value for name, value in settings.items()}
        url = shop.outside.url.render_as_string(hide_password=False)
        return start_worker("tests.functional.isolation.host:create_app", *options, url=url, env=env)

    return start


def pid_in(path: Path) -> int:
    """Wait until a handler has written its process id into a file, and return it."""
    return int(wait_until(lambda: path.exists() and path.read_text(), 20, f"{path.name} to name a process"))


def is_gone(pid: int) -> bool:
    """Say whether a process has ended and is not even a zombie."""
    return not psutil.pid_exists(pid)


def wait_until_gone(*pids: int, timeout: float = 10) -> None:
    """Wait until processes have ended and have been reaped."""
    wait_until(lambda: all(is_gone(pid) for pid in pids), timeout, lambda: f"{[pid for pid in pids if not is_gone(pid)]} to be gone")

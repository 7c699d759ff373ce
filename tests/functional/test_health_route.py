"""R9: the health route and what it tells to whom, on every database."""

from __future__ import annotations

from typing import Any

import pytest

from flask_taskengine.domain.errors import ConfigError
from tests.support.hosts import MakeApp
from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop, RunWorker, make_shop, run_worker
from tests.support.waiting import wait_until

__all__ = ["make_shop", "run_worker"]

OPEN = {"TASKENGINE_API_UNPROTECTED": True}


def health(shop: Shop, status: int = 200, path: str = "/taskengine/health") -> dict[str, Any]:
    """Ask, and return what is said."""
    answer = shop.app.test_client().get(path)
    assert answer.status_code == status, answer.text
    said: dict[str, Any] = answer.get_json()
    return said


def test_r9_up_with_details_for_those_who_may_read(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """Database, schema, workers, counts and warnings; everybody else learns no more than UP."""
    assert health(make_shop()) == {"status": "UP"}
    shop = make_shop(**OPEN)
    shop.enqueue("unknown")
    run_worker(shop)
    wait_until(lambda: health(shop)["workers"] == 1)
    said = health(shop)
    assert (said["status"], said["database"], said["schema"]["faults"], said["wakeup"]) == ("UP", "UP", [], "auto")
    assert said["tasks"]["PENDING"] == 1
    assert said["oldest_due_age"] > 0
    assert said["last_heartbeat_age"] < 60
    assert said["warnings"] == []


def test_r9_too_few_workers(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """DOWN until there are as many as wanted, with a fault that says what to do."""
    shop = make_shop(**OPEN, TASKENGINE_HEALTH_MIN_WORKERS=1)
    assert "start workers" in health(shop, 503)["faults"][0]
    run_worker(shop)
    wait_until(lambda: shop.app.test_client().get("/taskengine/health").status_code == 200)


def test_r9_a_task_that_is_due_for_too_long(make_shop: MakeShop) -> None:
    """DOWN where a limit is set; a task that is not due yet does not count."""
    shop = make_shop(**OPEN, TASKENGINE_HEALTH_MAX_DUE_AGE="1h")
    task_id = shop.enqueue("a")
    assert health(shop)["status"] == "UP"
    past = "now() - interval '2 h'" if shop.is_postgresql else "strftime('%Y-%m-%d %H:%M:%f', 'now', '-2 hours')"
    shop.sql(f"UPDATE taskengine_task SET available_at = {past} WHERE id = :id", id=task_id)
    assert "TASKENGINE_HEALTH_MAX_DUE_AGE" in health(shop, 503)["faults"][0]


def test_r9_without_a_schema_or_a_database(make_app: MakeApp, empty_database_url: str) -> None:
    """DOWN, and nothing is created; that the process lives is said without looking."""
    empty = make_app(empty_database_url, **OPEN)
    client = empty.app.test_client()
    answer = client.get("/taskengine/health")
    assert answer.status_code == 503
    assert answer.get_json()["faults"]
    assert client.get("/taskengine/health/live").get_json() == {"status": "UP"}
    away = make_app("postgresql+psycopg://nobody@127.0.0.1:1/nowhere", **OPEN)
    answer = away.app.test_client().get("/taskengine/health")
    assert answer.status_code == 503
    assert (answer.get_json()["status"], answer.get_json()["database"]) == ("DOWN", "DOWN")
    assert away.app.test_client().get("/taskengine/health/live").status_code == 200


def test_r9_the_details_are_for_those_whom_the_guard_lets_read(make_shop: MakeShop) -> None:
    """The guard is asked for read; a refusal leaves the status."""
    shop = make_shop()
    allowed = [False, True]
    shop.engine.admin_guard(lambda action: allowed.pop(0))
    assert health(shop) == {"status": "UP"}
    assert health(shop)["database"] == "UP"


def test_r9_the_route_can_be_moved_and_switched_off(make_shop: MakeShop) -> None:
    """Below another prefix, at the root, or not at all."""
    assert health(make_shop(TASKENGINE_API_URL_PREFIX="/ops"), path="/ops/health")["status"] == "UP"
    assert health(make_shop(TASKENGINE_API_URL_PREFIX="/"), path="/health")["status"] == "UP"
    assert make_shop(TASKENGINE_HEALTH_ENABLED=False).app.test_client().get("/taskengine/health").status_code == 404


def test_r9_thresholds_are_checked(make_app: MakeApp, sqlite_url: str) -> None:
    """A wrong one is an error at once."""
    with pytest.raises(ConfigError, match="HEALTH_MIN_WORKERS"):
        make_app(sqlite_url, TASKENGINE_HEALTH_MIN_WORKERS=-1)

"""The example shop, and the demo that runs it."""

from __future__ import annotations

import http.client
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import sqlalchemy as sa
from flask import Flask

import example_app
from example_app import create_app
from example_app.extensions import db, engine
from example_app.models import Order
from tests.support.waiting import wait_until
from tests.support.worker import Process, StartWorker

FORM = {"reference": "A1B2", "customer": "Ada Lovelace", "email": "ada@example.org", "tea": "2", "cup": "1"}


# --- the shop ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(database_url: str, tmp_path: Path) -> Iterator[Flask]:
    """Make the shop with its own tables."""
    app = create_app({"SQLALCHEMY_DATABASE_URI": database_url, "SHOP_FOLDER": str(tmp_path), "TESTING": True})
    with app.app_context():
        db.create_all()
    yield app
    with app.app_context():
        db.session.remove()
        for one in db.engines.values():
            one.dispose()


def _tasks(app: Flask) -> list[tuple[Any, ...]]:
    statement = "SELECT id, type, status, priority, idempotency_key FROM taskengine_task ORDER BY priority DESC"
    with app.app_context():
        return [tuple(row) for row in db.session.execute(sa.text(statement))]


def _orders(app: Flask) -> list[str]:
    with app.app_context():
        return list(db.session.scalars(sa.select(Order.reference)))


def test_placing_an_order_writes_it_and_its_tasks(shop: Flask) -> None:
    """The button writes an order and enqueues a mail, a payment and a report, in this order of priority."""
    assert shop.test_client().post("/orders", data=FORM).status_code == 303
    assert _orders(shop) == ["A1B2"]
    assert [task[1:] for task in _tasks(shop)] == [
        ("mail.confirmation", "PENDING", 10, "A1B2:mail"),
        ("payment.charge", "PENDING", 0, "A1B2:payment"),
        ("order.report", "PENDING", -10, "A1B2:report"),
    ]
    page = shop.test_client().get("/").text
    assert "A1B2" in page
    assert page.count("PENDING") == 3


def test_r00_an_order_that_fails_after_enqueueing_leaves_nothing(shop: Flask, caplog: pytest.LogCaptureFixture) -> None:
    """The second button's page shows that neither the order nor a task exists; nothing is said about a forgotten commit."""
    answer = shop.test_client().post("/orders/failing", data=FORM)
    assert answer.status_code == 409
    assert "Order A1B2" in answer.text
    assert answer.text.count("does not exist") == 4
    assert "exists</span>" not in answer.text.replace("does not exist", "")
    assert _orders(shop) == []
    assert _tasks(shop) == []
    assert not caplog.records


def test_a_form_that_is_sent_twice_is_one_order(shop: Flask) -> None:
    """A double click, or a reload, places nothing more."""
    for _ in range(2):
        assert shop.test_client().post("/orders", data=FORM).status_code == 303
    assert _orders(shop) == ["A1B2"]
    assert len(_tasks(shop)) == 3


@pytest.mark.parametrize("wrong", [{"tea": "0", "cup": "0"}, {"tea": "-1"}, {"tea": "100"}, {"email": ""}, {"reference": "../x"}])
def test_a_wrong_form_is_refused(shop: Flask, wrong: dict[str, str]) -> None:
    """What can not be an order is answered with 400 and places none."""
    assert shop.test_client().post("/orders", data=FORM | wrong).status_code == 400
    assert _orders(shop) == []


def test_the_page_of_an_order_shows_its_tasks(shop: Flask) -> None:
    """Each task stands there with its payload; a task that is gone by now is said to be."""
    client = shop.test_client()
    client.post("/orders", data=FORM)
    page = client.get("/orders/A1B2").text
    assert "payment.charge" in page
    assert '"cents": 2830' in page
    with shop.app_context():
        engine.delete(_tasks(shop)[0][0])
        db.session.commit()
    assert "Removed by retention." in client.get("/orders/A1B2").text
    assert client.get("/orders/NONE").status_code == 404


@pytest.mark.timeout(120)
def test_r23_what_a_processor_returns_is_kept(shop: Flask, tmp_path: Path, start_worker: StartWorker) -> None:
    """A worker runs an order's three tasks, each effect once; the report is kept as the task's result, the failures as attempts."""
    shop.test_client().post("/orders", data=FORM)
    start_worker("example_app:create_app", url=shop.config["SQLALCHEMY_DATABASE_URI"], env={"SHOP_FOLDER": str(tmp_path)})

    wait_until(lambda: all(task[2] == "SUCCEEDED" for task in _tasks(shop)), 60, lambda: f"the end of {_tasks(shop)}")
    report_id = _tasks(shop)[-1][0]
    with shop.app_context():
        order = db.session.scalars(sa.select(Order)).one()
        [payment] = order.payments
        report = engine.get(report_id)
        assert report is not None
        assert report.result == {"pieces": 3, "cents": 2830, "receipts": [payment.receipt]}
        [attempts] = db.session.scalars(sa.text("SELECT attempts FROM taskengine_task WHERE type = 'payment.charge'"))
        assert db.session.scalar(sa.text("SELECT count(*) FROM taskengine_attempt")) == attempts - 1
    [mail] = (tmp_path / "outbox").iterdir()
    assert "Total: 28.30 EUR" in mail.read_text()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgres://u:p@db/shop", "postgresql+psycopg://u:p@db/shop"),
        ("postgresql://u:p@db/shop", "postgresql+psycopg://u:p@db/shop"),
        ("postgresql+psycopg://u:p@db/shop", "postgresql+psycopg://u:p@db/shop"),
        ("sqlite:////tmp/shop.sqlite", "sqlite:////tmp/shop.sqlite"),
        ("", "sqlite:///shop.sqlite"),
    ],
)
def test_every_name_of_postgresql_is_understood(given: str, expected: str) -> None:
    """DATABASE_URL works in the form that hosting platforms give it."""
    assert example_app.database_url(given) == expected


# --- the demo ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Any]:
    """Start ``python -m example_app.demo`` with environment variables, and kill what is left of it."""
    started: list[Process] = []
    children: list[psutil.Process] = []

    def start(**env: str) -> Process:
        variables = {"DATABASE_URL": "", "DEMO": "", "SHOP_FOLDER": "", "TMPDIR": str(tmp_path)} | env
        started.append(process := Process(sys.executable, "-m", "example_app.demo", log=tmp_path / "demo.log", env=variables))
        return process

    yield start
    for process in started:
        children += _children(process)
        process.kill()
    for child in children:
        child.kill()


def _children(process: Process) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _get(address: str) -> str:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    connection.request("GET", urlsplit(address).path or "/")
    return connection.getresponse().read().decode()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_r00_seven_of_ten_orders_leave_tasks_that_run_once(
    request: pytest.FixtureRequest, tmp_path: Path, demo: Any, database: str
) -> None:
    """``DEMO=once`` places ten orders through the shop's pages, three of which roll back, and finds every effect exactly once."""
    url = ""
    if database == "postgresql":
        url = request.getfixturevalue("empty_postgresql_url").replace("postgresql+psycopg://", "postgres://")
    process = demo(DEMO="once", DATABASE_URL=url)
    assert process.wait(130) == 0, process.log
    assert "7 of 7 committed orders" in process.log
    assert "3 of 3 orders that were rolled back" in process.log
    assert len(re.findall(r"SUCCEEDED", process.log)) == 21
    assert not list(tmp_path.glob("taskengine-demo-*"))


def _still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.timeout(120)
def test_ctrl_c_ends_the_demo_and_leaves_no_process(tmp_path: Path, demo: Any) -> None:
    """The demo shows the shop until Ctrl-C, which ends the web app and the worker too, and is no error."""
    process = demo(SHOP_FOLDER=str(tmp_path))
    address = process.wait_for_log(r"The shop:\s+(http://\S+)", 60)[1]
    assert "Place an order" in _get(address)
    assert "<h1>Overview</h1>" in _get(process.wait_for_log(r"Its tasks:\s+(http://\S+)")[1])
    children = wait_until(lambda: _children(process)[1:] and _children(process), 30, "the web app and the worker")
    assert process.terminate(signal.SIGINT, 60) == 0, process.log
    assert "are stopped" in process.log
    assert not _still_running(children)


@pytest.mark.timeout(120)
def test_ctrl_c_ends_the_ten_orders_too(tmp_path: Path, demo: Any) -> None:
    """Interrupted before it could count, ``DEMO=once`` has not succeeded, and leaves neither a process nor its data."""
    process = demo(DEMO="once")
    process.wait_for_log(r"Waiting for the tasks", 60)
    children = _children(process)
    assert process.terminate(signal.SIGINT, 60) == 130, process.log
    assert children
    assert not _still_running(children)
    assert not list(tmp_path.glob("taskengine-demo-*"))


@pytest.mark.timeout(120)
def test_the_demo_says_what_stops_it(tmp_path: Path, demo: Any) -> None:
    """A database that does not answer ends the demo with an error and the reason."""
    process = demo(DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing")
    assert process.wait(60) == 1
    assert "taskengine migrate failed" in process.log
    assert "127.0.0.1" in process.log

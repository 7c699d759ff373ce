"""What breaks between a worker and its database heals by itself: nothing is lost, nothing is done twice, the log stays short."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import RetryPolicy
from flask_taskengine.runtime import notifier
from flask_taskengine.runtime.database import Line
from flask_taskengine.runtime.worker import Worker
from tests.support.databases import PostgresqlDatabases
from tests.support.hosts import MakeApp
from tests.support.postgresql import Cluster
from tests.support.proxy import Proxy
from tests.support.shop import Effect, Shop, open_shop
from tests.support.shop_fixtures import RunWorker
from tests.support.waiting import wait_until

PARTS = ["listener", "claim", "heartbeat", "completion", "handler", "enqueue"]
FAULTS = ["terminated", "restarted", "half-open", "read-only"]
SHORT = 2.0
"""Seconds that internal statements get here, instead of 15."""
MOST_LINES = 30
MOST_ALIKE = 4

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """Start a server that the tests of this module may break, one after the other."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def databases(server: Cluster) -> PostgresqlDatabases:
    """Make databases on that server."""
    return PostgresqlDatabases(server.url(), "connections")


@dataclass
class Scene:
    """A worker on a server that can be broken and mended."""

    shop: Shop
    server: Cluster
    proxy: Proxy
    worker: Worker | None = None
    inside: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    raised: list[BaseException] = field(default_factory=list)

    def broken(self, fault: str, part: str) -> Callable[[], None]:
        """Break something; return what mends it."""
        match fault:
            case "terminated":
                with self.shop.outside.begin() as connection:
                    connection.execute(sa.text("SELECT pg_terminate_backend(pid) FROM unnest(:pids) pid"), {"pids": self.pids(part)})
                return lambda: None
            case "restarted":
                self.server.stop("immediate")
                return self.start_again
            case "half-open":
                self.proxy.lose()
                return self.proxy.mend
            case _:
                self.read_only("on")
                return lambda: self.read_only("off")

    def start_again(self) -> None:
        """Start the server, on the port that it had."""
        self.server.start()

    def read_only(self, value: str) -> None:
        """Let new transactions of the whole server write, or not."""
        with self.shop.outside.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
            connection.exec_driver_sql("SET default_transaction_read_only = off")

    def pids(self, part: str) -> list[int]:
        """Return the server processes that serve a part of the worker."""
        assert self.worker is not None
        match part:
            case "listener":
                listener: Any = self.worker.notifier._listener
                return [listener._connection.info.backend_pid]
            case "claim":
                return [pid_of(self.worker.dispatcher._line)]
            case "heartbeat":
                assert self.worker._heartbeat is not None
                return [pid_of(self.worker._heartbeat._line)]
            case "completion":
                return [pid_of(self.worker.completer._line)]
        # Those of the host's own pool: in a transaction.
        with self.shop.outside.connect() as connection:
            statement = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
            return [row[0] for row in connection.execute(sa.text(statement + " AND pid <> pg_backend_pid()"))]


def pid_of(line: Line) -> int:
    """Return the server process of one of the worker's own connections."""
    assert line._connection is not None
    driver: Any = line._connection.connection.driver_connection
    return int(driver.info.backend_pid)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give internal statements two seconds, and a silent listener as well."""
    guarded = Line._guarded

    def soon(line: Line, deadline: float) -> AbstractContextManager[sa.Connection]:
        return guarded(line, min(deadline, SHORT))

    monkeypatch.setattr(Line, "_guarded", soon)
    monkeypatch.setattr(notifier, "_RETEST_EVERY", SHORT)
    monkeypatch.setattr(notifier, "STATEMENT_DEADLINE", SHORT)
    monkeypatch.setattr("flask_taskengine.runtime.executor.STATEMENT_DEADLINE", SHORT)


@pytest.fixture
def scene(
    server: Cluster, databases: PostgresqlDatabases, make_app: MakeApp, run_worker: RunWorker, impatient: None, part: str
) -> Iterator[Scene]:
    """Start a worker that reaches its database through a proxy only."""
    direct = databases.create()
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(server.port))
        url = sa.make_url(direct).set(port=proxy.port).render_as_string(hide_password=False)
        settings = {
            # Only what wakes it, or what it knows of the time, makes it look.
            "TASKENGINE_POLL_INTERVAL": 60 if part == "listener" else 1,
            "TASKENGINE_HEARTBEAT_INTERVAL": 1,
            "TASKENGINE_LEASE": 60,
            "SQLALCHEMY_ENGINE_OPTIONS": {"pool_pre_ping": True},
        }
        shop = stack.enter_context(open_shop(make_app, url, **settings))
        shop.outside = sa.create_engine(direct, poolclass=sa.NullPool)
        scene = Scene(shop, server, proxy)
        declare(scene)
        scene.worker = run_worker(shop, 4, beats=True)
        shop.wait_for(shop.enqueue("plain"), timeout=30)
        wait_until(lambda: scene.worker is not None and scene.worker.notifier.mode == "LISTEN", 30)
        yield scene
        scene.go.set()
        proxy.mend()
        assert scene.worker.stop(0) in (True, False)


def declare(scene: Scene) -> None:
    """Declare handlers that wait, inside, for something to break."""
    shop = scene.shop
    for_ever = RetryPolicy(max_attempts=None, base_backoff=0.2, jitter=0, max_backoff=0.2)

    @shop.engine.task("plain", timeout=None)
    def plain(payload: Any) -> None:
        if payload == "wait":
            scene.inside.set()
            scene.go.wait(60)

    @shop.engine.task("write", timeout=SHORT, retry=for_ever)
    def write(payload: str) -> None:
        shop.db.session.add(Effect(name=payload))
        shop.db.session.flush()
        if payload == "wait" and not scene.go.is_set():
            scene.inside.set()
            scene.go.wait(60)


@contextmanager
def at_work(scene: Scene, part: str) -> Iterator[None]:
    """Let the part be in the middle of something in the block, and see it end afterwards."""
    shop = scene.shop
    if part in ("completion", "handler"):
        shop.enqueue("plain" if part == "completion" else "write", "wait")
        assert scene.inside.wait(30)
    if part != "enqueue":
        yield
        scene.go.set()
        return
    started = threading.Event()

    def request() -> None:
        try:
            with shop.app.app_context():
                shop.engine.enqueue("write", "requested")
                shop.db.session.add(Effect(name="business"))
                shop.db.session.flush()
                started.set()
                scene.go.wait(60)
                shop.db.session.commit()
        except sa.exc.DBAPIError as error:
            scene.raised.append(error)

    thread = threading.Thread(target=request)
    thread.start()
    assert started.wait(30)
    yield
    scene.go.set()
    thread.join(SHORT)
    # The host's own connection has no deadline of ours: it notices a dead peer when its system does.
    scene.proxy.reset()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(("part", "fault"), [*((part, "terminated") for part in PARTS), *(("listener", fault) for fault in FAULTS[1:])])
def test_r12_whatever_breaks_heals_by_itself(scene: Scene, part: str, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each part in the middle of its work, each fault: the worker goes on once the database is back (faults 20, 67, P145, P149)."""
    shop, worker = scene.shop, scene.worker
    assert worker is not None
    node = worker.membership.id
    with at_work(scene, part):
        mend = scene.broken(fault, part)
        scene.go.set()
        if fault != "terminated":
            wait_until(lambda: any("trying again" in record.getMessage() for record in caplog.records), 30)
        mend()
    back = shop.sql("SELECT now()")[0][0]
    shop.sql("""INSERT INTO taskengine_task (type, payload) VALUES ('write', '"by hand"'), ('plain', NULL)""")
    written = [shop.enqueue("write", "enqueued"), shop.enqueue("plain")]
    shop.wait_for_all(written, timeout=30)
    wait_until(lambda: all(task.status == "SUCCEEDED" for task in shop.tasks()), 30, lambda: f"all to succeed: {shop.tasks()}")
    wait_until(lambda: shop.sql("SELECT count(*) FROM taskengine_node WHERE heartbeat_at > :back", back=back)[0][0] == 1, 30)
    assert worker.membership.id == node
    expect_each_effect_once(scene, part)
    expect_a_handful_of_lines(caplog.records)
    if part == "listener":
        wait_until(lambda: worker.notifier.mode == "LISTEN" and worker.notifier._listener is not None, 30)
        shop.wait_for(shop.enqueue("write", "woken"), timeout=30)


def expect_each_effect_once(scene: Scene, part: str) -> None:
    """Compare tasks and effects: what is unique in the database was there once, so it is enough that all are there."""
    wanted = Counter(["by hand", "enqueued"])
    if part == "handler":
        wanted["wait"] += 1
    if part == "enqueue" and not scene.raised:
        wanted += Counter(["requested", "business"])
    assert Counter(scene.shop.effects()) == wanted
    assert all(task.attempts == 1 for task in scene.shop.tasks() if task.type == "plain")


def expect_a_handful_of_lines(records: list[logging.LogRecord]) -> None:
    """Look at the worker's own lines; those of tasks that failed and are retried are told by events."""
    lines = [r.getMessage() for r in records if r.name == "flask_taskengine" and r.levelno >= logging.WARNING]
    counted = Counter(line[:30] for line in lines)
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert max(counted.values(), default=0) <= MOST_ALIKE, "\n".join(lines)

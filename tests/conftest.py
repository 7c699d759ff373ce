"""The servers, databases and hosts that every test can ask for."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from .support.databases import PostgresqlDatabases, SqliteDatabases
from .support.hosts import Host, MakeApp, close_host, make_host, own_threads
from .support.postgresql import URL_VARIABLE, Cluster, MakeCluster, NoServerError, with_driver
from .support.waiting import wait_until
from .support.worker import StartWorker, WorkerProcess

SERVER = pytest.StashKey[str]()
CLUSTER = pytest.StashKey[Cluster]()
DATABASES = ["postgresql", "sqlite"]


# --- one PostgreSQL server for the whole run ----------------------------------------------------------------------------


def pytest_configure() -> None:
    """Hide the libpq variables of whoever runs the tests from every connection that the tests make."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Find or start the server, before xdist starts its workers; a run without a server fails."""
    config = session.config
    if hasattr(config, "workerinput"):
        config.stash[SERVER] = config.workerinput["postgresql_server"]
    elif not config.option.collectonly:
        try:
            config.stash[SERVER] = _given_server() or _own_server(config)
        except NoServerError as error:
            pytest.exit(str(error), returncode=pytest.ExitCode.INTERNAL_ERROR)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Tell a worker of xdist which server the run uses."""
    node.workerinput["postgresql_server"] = node.config.stash.get(SERVER, None)  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server that this run has started."""
    if (cluster := config.stash.get(CLUSTER, None)) is not None:
        cluster.remove()


def pytest_report_header(config: pytest.Config) -> str:
    """Say which server the run uses."""
    cluster = config.stash.get(CLUSTER, None)
    return f"postgresql: {cluster.version if cluster else 'the server of ' + URL_VARIABLE}"


def _given_server() -> str | None:
    if not (given := os.environ.get(URL_VARIABLE)):
        return None
    url = with_driver(given)
    try:
        psycopg.connect(url.replace("+psycopg", "", 1), connect_timeout=10).close()
    except psycopg.OperationalError as error:
        raise NoServerError(f"the server of {URL_VARIABLE} does not answer: {error}") from error
    return url


def _own_server(config: pytest.Config) -> str:
    config.stash[CLUSTER] = cluster = Cluster()
    return cluster.start().url()


# --- a database for each test ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgresql_databases(pytestconfig: pytest.Config, worker_id: str) -> Iterator[PostgresqlDatabases]:
    """Make databases on the run's server; a test that needs one only asks for `postgresql_url`."""
    databases = PostgresqlDatabases(pytestconfig.stash[SERVER], f"te_{worker_id}_{secrets.token_hex(4)}")
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def sqlite_databases(tmp_path_factory: pytest.TempPathFactory) -> SqliteDatabases:
    """Make SQLite files; a test that needs one only asks for `sqlite_url`."""
    return SqliteDatabases(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture
def postgresql_url(postgresql_databases: PostgresqlDatabases) -> Iterator[str]:
    """Return the URL of a PostgreSQL database that has the engine's schema and belongs to this test."""
    url = postgresql_databases.create()
    yield url
    postgresql_databases.drop(url)


@pytest.fixture
def sqlite_url(sqlite_databases: SqliteDatabases, tmp_path: Path) -> str:
    """Return the URL of a SQLite file that has the engine's schema and belongs to this test."""
    return sqlite_databases.create(tmp_path / "test.sqlite")


@pytest.fixture
def empty_postgresql_url(postgresql_databases: PostgresqlDatabases) -> Iterator[str]:
    """Return the URL of a PostgreSQL database that has no tables and belongs to this test."""
    url = postgresql_databases.create_empty()
    yield url
    postgresql_databases.drop(url)


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """Return the URL of a SQLite file that does not exist yet and belongs to this test."""
    return f"sqlite:///{tmp_path / 'empty.sqlite'}"


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in DATABASES])
def database_url(request: pytest.FixtureRequest) -> str:
    """Run the test on every database, each with the engine's schema."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in DATABASES])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """Run the test on every database, each without any table."""
    url: str = request.getfixturevalue(f"empty_{request.param}_url")
    return url


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Start PostgreSQL servers that a test may stop, crash, pause or configure; half a second each.

    Example: ``url = PostgresqlDatabases(make_cluster(max_connections=10).url(), "own").create()``
    """
    with ExitStack() as stack:

        def make(**settings: str | int) -> Cluster:
            return stack.enter_context(Cluster(**settings))

        yield make


# --- hosts and workers -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """Let no test pass that leaves threads of the engine behind; set up first, so that it looks last."""
    yield
    wait_until(lambda: not own_threads(), 5, lambda: f"the test's last thread to end, but there are {own_threads()}")


@pytest.fixture
def make_app() -> Iterator[MakeApp]:
    """Make hosts on a database; see `Host` and `make_host`.

    Example: ``app, db, engine = make_app(database_url, TASKENGINE_CONCURRENCY=2)``
    """
    with ExitStack() as stack:

        def make(url: str, **config: Any) -> Host:
            host = make_host(url, **config)
            stack.callback(close_host, host)
            return host

        yield make


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Start real workers; what still runs at the end of the test is killed.

    The URL is given as ``FLASK_SQLALCHEMY_DATABASE_URI``, for an app that calls ``app.config.from_prefixed_env()``.

    Example: ``worker = start_worker("tests.functional.shop:create_app", "--drain", url=database_url)``
    """
    workers: list[WorkerProcess] = []

    def start(app: str, *options: str, url: str | None = None, env: Mapping[str, str] | None = None) -> WorkerProcess:
        variables = dict(env or {}) | ({"FLASK_SQLALCHEMY_DATABASE_URI": url} if url else {})
        workers.append(worker := WorkerProcess(app, *options, log=tmp_path / f"worker-{len(workers) + 1}.log", env=variables))
        return worker

    yield start
    for worker in workers:
        worker.kill()

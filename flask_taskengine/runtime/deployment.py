"""Looks at a deployment and says what is wrong with it, what is doubtful, and what is well."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from ..domain.durations import roughly, spoken
from ..domain.errors import ConfigError
from ..engine.presentation import first_line
from ..store import health, migrations, nodes
from ..store.clock import db_now
from ..store.dialects.base import Dialect
from .host import Host

CLOCK_TOLERANCE = 5.0
"""Seconds by which this machine's clock may differ from the database's before it is worth a word; nothing depends on it."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """Works, but seldom as was meant."""
    ERROR = "error"
    """Tasks do not run, or not safely, until this is mended."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str
    text: str
    remedy: str = ""


def check(host: Host) -> list[Finding]:
    """Look at settings, database, schema, clock, wake-ups, nodes and pool. Reads only, in transactions of its own."""
    found = [*_settings(host), *_pool(host)]
    engine = host.sql_engine()
    dialect = host.dialect(engine.dialect.name)
    try:
        dialect.require_shared(engine.url)
        with engine.connect() as connection:
            found += _clock(connection)
            found += _database(connection, dialect)
            faults = list(_schema(connection, host))
            found += faults
            if all(finding.level is Level.OK for finding in faults):
                found += _work(connection, host, dialect)
                found += _health(connection, dialect)
    except ConfigError as error:
        return [*found, *(_sentence(Level.ERROR, "database", fault) for fault in error.faults)]
    except sa.exc.DBAPIError as error:
        remedy = "see that it runs, and that SQLALCHEMY_DATABASE_URI is right"
        return [*found, Finding(Level.ERROR, "database", f"the database does not answer: {first_line(str(error.orig))}", remedy)]
    return [*found, _wake_ups(engine, host, dialect)]


def _sentence(level: Level, about: str, sentence: str) -> Finding:
    text, _, remedy = sentence.partition(": ")
    return Finding(level, about, text, remedy)


def _settings(host: Host) -> Iterator[Finding]:
    warnings = host.settings.warnings()
    yield from (_sentence(Level.WARNING, "settings", warning) for warning in warnings)
    if not warnings:
        yield Finding(Level.OK, "settings", "nothing to say")


def _pool(host: Host) -> Iterator[Finding]:
    pool = host.sql_engine().pool
    if not isinstance(pool, sa.pool.QueuePool):
        return
    overflow: int = pool._max_overflow  # noqa: SLF001 - it has no other way to be read
    most, concurrency = pool.size() + overflow, host.settings.concurrency
    if overflow < 0 or most >= concurrency:
        yield Finding(Level.OK, "pool", f"enough connections for {concurrency} tasks at once")
        return
    text = f"the app's pool gives at most {most} connections to {concurrency} tasks at once, so handlers wait for each other"
    remedy = f"raise pool_size or max_overflow in SQLALCHEMY_ENGINE_OPTIONS, or set TASKENGINE_CONCURRENCY to {most}"
    yield Finding(Level.WARNING, "pool", text, remedy)


def _database(connection: sa.Connection, dialect: Dialect) -> Iterator[Finding]:
    version = ".".join(map(str, connection.dialect.server_version_info or ()))
    url = connection.engine.url.render_as_string(hide_password=True)
    yield Finding(Level.OK, "database", f"{connection.dialect.name} {version} at {url}")
    yield from (_sentence(Level.WARNING, "database", doubt) for doubt in dialect.doubts(connection))
    if dialect.commits_by_itself(connection):
        text = "the app's connections commit by themselves, so a task is enqueued even if its transaction is rolled back"
        yield Finding(Level.ERROR, "isolation", text, "take AUTOCOMMIT out of SQLALCHEMY_ENGINE_OPTIONS")


def _clock(connection: sa.Connection) -> Iterator[Finding]:
    before = time.time()
    now = connection.execute(sa.select(db_now())).scalar_one()
    ahead = now.timestamp() - (before + time.time()) / 2
    if abs(ahead) <= CLOCK_TOLERANCE:
        yield Finding(Level.OK, "clock", f"the database's differs from this machine's by {abs(ahead):.1f} s")
        return
    text = f"the database's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    remedy = "nothing runs early or twice for that; set the wrong one, so that log lines can be compared with the tasks' times"
    yield Finding(Level.WARNING, "clock", text, remedy)


def _schema(connection: sa.Connection, host: Host) -> Iterator[Finding]:
    faults = migrations.schema_faults(connection, host.names)
    yield from (_sentence(Level.ERROR, "schema", fault) for fault in faults)
    if not faults:
        yield Finding(Level.OK, "schema", f"complete, at revision {migrations.head_revision()}")


def _work(connection: sa.Connection, host: Host, dialect: Dialect) -> Iterator[Finding]:
    alive = nodes.alive(connection, dialect.tables, host.settings.lease)
    due = sorted(task_type for task_type, wait in dialect.pending_types(connection).items() if wait <= 0)
    yield _workers(alive, due)
    here = frozenset(host.registry.types())
    known = frozenset(task_type for node in alive for task_type in node["types"])
    # Without any worker, the types that this app knows want nothing but one.
    strange = [task_type for task_type in due if task_type not in (known if alive else here)]
    if not strange:
        return
    text = f"tasks are due whose type no live node knows: {', '.join(strange)}"
    if ours := [task_type for task_type in strange if task_type in here]:
        remedy = f"this app knows {', '.join(ours)}: restart the workers with its code, or give them no --types that leave it out"
    else:
        remedy = "start a worker whose app knows them; without one their attempts fail"
        remedy += f", {spoken(host.settings.unknown_type_grace)} (TASKENGINE_UNKNOWN_TYPE_GRACE) after they were due"
    yield Finding(Level.ERROR, "types", text, remedy)


def _workers(alive: list[Mapping[str, Any]], due: list[str]) -> Finding:
    if alive:
        return Finding(Level.OK, "workers", f"{len(alive)} alive: {', '.join(node['label'] for node in alive)}")
    if due:
        return Finding(Level.ERROR, "workers", f"no worker is alive, and tasks are due: {', '.join(due)}", "run `flask taskengine worker`")
    return Finding(Level.WARNING, "workers", "no worker is alive", "run `flask taskengine worker`")


def _health(connection: sa.Connection, dialect: Dialect) -> Iterator[Finding]:
    figures = health.health_figures(connection, dialect)
    doubts = health.warnings(figures)
    yield from (_sentence(Level.WARNING, "health", doubt) for doubt in doubts)
    if doubts:
        return
    vitals, oldest = figures.vitals, figures.vitals.oldest_transaction
    told = [f"oldest due task {roughly(figures.oldest_due)}"]
    told += [f"{vitals.dead_rows:,} dead rows"] if vitals.dead_rows is not None else []
    told += [f"oldest open transaction {roughly(oldest.age)}"] if oldest is not None and oldest.age is not None else []
    told += [f"notification queue {vitals.notify_queue_usage:.0%} full"] if vitals.notify_queue_usage is not None else []
    yield Finding(Level.OK, "health", ", ".join(told))


def _wake_ups(engine: sa.Engine, host: Host, dialect: Dialect) -> Finding:
    """Listen for a moment, as a worker does; no other connection of the app is in use meanwhile, so a pool of one is enough."""
    settings = host.settings
    every = spoken(settings.poll_interval)
    if settings.wakeup == "poll":
        return Finding(Level.OK, "wake-ups", f'by poll every {every}, as TASKENGINE_WAKEUP = "poll" says')
    try:
        listener = dialect.listener(engine, settings.listen_url)
    except Exception as error:
        level = Level.ERROR if settings.wakeup == "notify" else Level.WARNING
        remedy = "set TASKENGINE_LISTEN_URL to the address of the database itself, without a pooler in between"
        return Finding(level, "wake-ups", f"wake-ups by poll only, every {every}: {first_line(str(error))}", remedy)
    listener.close()
    with suppress(Exception):
        listener.wait(0)
    return Finding(Level.OK, "wake-ups", f"by {listener.mode}, and by poll every {every}")

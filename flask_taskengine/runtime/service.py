"""``flask taskengine worker``: what is checked before anything starts, and then the supervisor."""

from __future__ import annotations

import logging
import selectors
import signal
from collections.abc import Callable
from typing import Any

from ..domain.errors import ConfigError
from ..store.migrations import schema_faults
from .database import Database
from .host import Host
from .inbox import STOPPING, Inbox
from .lookout import Show
from .loop import Loop
from .process import Plan
from .supervisor import Supervisor
from .watchdog import Watchdog
from .worker import WorkerOptions

_logger = logging.getLogger("flask_taskengine")


def run_worker(  # noqa: PLR0913 - the options of the command
    host: Host,
    *,
    concurrency: int | None = None,
    processes: int = 1,
    types: frozenset[str] | None = None,
    drain: bool = False,
    label: str | None = None,
    max_tasks: int | None = None,
    max_memory: int | None = None,
    executor_factory: Callable[[int], Any] | None = None,
    show: Show | None = None,
) -> int:
    """Run tasks in child processes until a signal stops it, or with ``drain`` until nothing is due; for the main thread.

    A database that is down is waited for.

    Args:
        concurrency: tasks in flight per process; by default ``TASKENGINE_CONCURRENCY``.
        types: only these task types.
        label: what people call this node, by default the host's name.
        max_tasks: replace a process after so many tasks.
        max_memory: replace a process that has grown to so many bytes.
        executor_factory: makes the pool in which handlers run.
        show: shows to the outside how the processes are.

    Returns:
        The exit code.

    Raises:
        ConfigError: a worker can not run here: the setting ``ENABLED`` is off, a type is unknown, the database is in memory or
            its schema is missing or out of date.
    """
    options = WorkerOptions(concurrency=concurrency or host.settings.concurrency, types=types, label=label, drain=drain)
    _check(host, options)
    if host.embedded is not None:
        host.embedded.forbid()
    inbox = Inbox(*STOPPING, signal.SIGCHLD)
    inbox.install()
    try:
        if not _schema_is_ready(host, inbox):
            return 0
        plan = Plan(options=options, max_tasks=max_tasks, max_memory=max_memory, executor_factory=executor_factory, show=show)
        return Supervisor(host, plan, processes, inbox, options.in_words(host, processes)).run()
    finally:
        inbox.uninstall()
        inbox.close()


def _check(host: Host, options: WorkerOptions) -> None:
    if not host.settings.enabled:
        raise ConfigError("TASKENGINE_ENABLED is off: this app enqueues only; run the worker with an app in which it is on")
    known = host.registry.types()
    if unknown := sorted((options.types or frozenset()) - set(known)):
        raise ConfigError(f"the app has no processor for {', '.join(unknown)}: give types that it has, {', '.join(known) or 'it has none'}")
    if not known:
        _logger.warning("the app has no processors: is the module with its @engine.task functions imported?")
    url = host.sql_engine().url
    host.dialect(host.sql_engine().dialect.name).require_shared(url)


def _schema_is_ready(host: Host, inbox: Inbox) -> bool:
    """Wait until the database answers; return false if a signal came first.

    Raises:
        ConfigError: its schema is not the one that this version needs.
    """
    watchdog = Watchdog()
    database = Database(host, watchdog)
    line = database.line()
    found: list[list[str]] = []

    def look() -> float | None:
        with line.statement() as connection:
            found.append(schema_faults(connection, host.names))
        inbox.wake()
        return None

    loop = Loop("connecting to the database", look)
    watchdog.start()
    loop.start()
    stopped = False
    with selectors.DefaultSelector() as selector:
        selector.register(inbox, selectors.EVENT_READ)
        while not found and not stopped:
            selector.select()
            stopped = any(number in STOPPING for number in inbox.take())
    if not loop.stop(None if found else 1.0):
        return False
    line.close()
    watchdog.stop()
    database.close()
    if found and found[0]:
        raise ConfigError(found[0])
    return not stopped

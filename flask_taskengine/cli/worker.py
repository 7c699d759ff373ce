"""The command that runs tasks."""

from __future__ import annotations

from typing import Any

import click
from flask.cli import with_appcontext

from ..domain.errors import ConfigError
from ..settings_values import size
from .command import Command, current_host


def _types(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> frozenset[str] | None:
    return frozenset(name.strip() for names in given for name in names.split(",") if name.strip()) or None


def _size(ctx: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    try:
        return None if given is None else size(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(cls=Command)
@click.option("--concurrency", type=click.IntRange(1), show_envvar=True, help="Tasks in flight per process [TASKENGINE_CONCURRENCY, 8].")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, show_envvar=True, help="Processes that run tasks.")
@click.option("--types", multiple=True, callback=_types, show_envvar=True, help="Only these task types, separated by commas.")
@click.option("--drain", is_flag=True, show_envvar=True, help="Work until no due task is left, then exit.")
@click.option("--node-id", show_envvar=True, help="What people call this node [its host name].")
@click.option("--max-tasks", type=click.IntRange(1), show_envvar=True, help="Replace a process after so many tasks.")
@click.option("--max-memory", callback=_size, show_envvar=True, help="Replace a process that has grown to this, such as 500MiB.")
@with_appcontext
def worker(concurrency: int | None, node_id: str | None, **options: Any) -> None:
    """Run tasks until told to stop.

    SIGTERM and SIGINT let running tasks finish first, for up to TASKENGINE_SHUTDOWN_TIMEOUT; a second one does not.

    Example: flask taskengine worker --concurrency 4 --types email,report
    """
    from ..runtime.service import run_worker

    host = current_host()
    if not host.settings.enabled:
        raise ConfigError("TASKENGINE_ENABLED is off: this app enqueues only; run the worker with an app in which it is on")
    concurrency = concurrency or host.settings.concurrency
    code = run_worker(host, concurrency=concurrency, label=node_id, executor_factory=host.sender.executor_factory, **options)
    click.get_current_context().exit(code)

"""The command that runs tasks."""

from __future__ import annotations

import logging
import re
from typing import Any

import click
from flask.cli import with_appcontext
from flask.logging import default_handler

from ..runtime.host import Host
from ..telemetry import logs
from .command import Command, current_host

_LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)
_BYTES = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _types(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> frozenset[str] | None:
    return frozenset(name.strip() for names in given for name in names.split(",") if name.strip()) or None


def _size(ctx: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    if given is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,15})\s*(KiB|MiB|GiB)", given.strip(), re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{given!r} is no size: give one such as 500MiB or 2GiB")
    return int(match[1]) * _BYTES[match[2].upper()]


def _probe(ctx: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, int] | None:
    if given is None:
        return None
    from ..telemetry.probe import address_of

    try:
        return address_of(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _level(ctx: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    return None if given is None else logging.getLevelNamesMapping()[given.upper()]


@click.command(cls=Command)
@click.option(
    "--concurrency", type=click.IntRange(1), show_envvar=True, help="Tasks in flight per process; TASKENGINE_CONCURRENCY if not given."
)
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, show_envvar=True, help="Processes that run tasks.")
@click.option(
    "--types", multiple=True, callback=_types, metavar="TYPE,...", show_envvar=True, help="Only these task types; all if not given."
)
@click.option("--drain", is_flag=True, show_envvar=True, help="Work until no due task is left, then exit.")
@click.option("--node-id", metavar="NAME", show_envvar=True, help="What people call this node; the machine's name if not given.")
@click.option("--max-tasks", type=click.IntRange(1), show_envvar=True, help="Replace a process after so many tasks.")
@click.option(
    "--max-memory", callback=_size, metavar="SIZE", show_envvar=True, help="Replace a process that has grown to this, such as 500MiB."
)
@click.option(
    "--probe",
    callback=_probe,
    metavar="[HOST:]PORT",
    show_envvar=True,
    help="Answer /live, /ready and, with TASKENGINE_METRICS, /metrics there by HTTP.",
)
@click.option(
    "--log-level",
    type=_LEVELS,
    callback=_level,
    show_envvar=True,
    help="What is logged: INFO if not given, or what the app has configured.",
)
@click.option("--log-json", is_flag=True, show_envvar=True, help="Log one JSON object per line, unless the app has configured logging.")
@with_appcontext
def worker(node_id: str | None, probe: tuple[str, int] | None, log_level: int | None, log_json: bool, **options: Any) -> None:
    """Run tasks until told to stop.

    SIGTERM and SIGINT let running tasks finish first, for up to TASKENGINE_SHUTDOWN_TIMEOUT; a second one does not.

    Example: flask taskengine worker --concurrency 4 --types email.send,report
    """
    from ..runtime.service import run_worker

    host = current_host()
    _log(host, log_level, log_json)
    show = None
    if probe is not None:
        from ..telemetry.probe import Probe

        show = Probe(host, probe)
    code = run_worker(host, label=node_id, show=show, executor_factory=host.sender.executor_factory, **options)
    click.get_current_context().exit(code)


def _log(host: Host, level: int | None, as_json: bool) -> None:
    if logs.configure(level, as_json=as_json):
        # Flask has given the app's logger one while nobody else had: now each record would come twice.
        host.app.logger.removeHandler(default_handler)

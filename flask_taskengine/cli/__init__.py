"""``flask taskengine``: what people and deployments do from a shell. One module for each group of commands."""

from __future__ import annotations

import click

from .acting import cancel, delete, retry, retry_dead
from .bench import bench
from .deployment import check, migrate
from .enqueueing import enqueue
from .explaining import why
from .looking import list_, show, stats
from .operating import bulk, pause, resume, top
from .pruning import prune
from .schedules import schedules
from .worker import worker

__all__ = ["taskengine"]


@click.group(context_settings={"auto_envvar_prefix": "TASKENGINE"})
def taskengine() -> None:
    """Durable tasks in the app's own database."""


_COMMANDS = (
    worker,
    migrate,
    check,
    enqueue,
    list_,
    show,
    why,
    retry,
    retry_dead,
    cancel,
    delete,
    bulk,
    pause,
    resume,
    prune,
    bench,
    stats,
    top,
    schedules,
)
for _command in _COMMANDS:
    taskengine.add_command(_command)

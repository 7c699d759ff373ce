"""``flask taskengine``: what people and deployments do from a shell. One module for each group of commands."""

from __future__ import annotations

import click

from .acting import cancel, delete, retry, retry_dead
from .deployment import check, migrate
from .enqueueing import enqueue
from .explaining import why
from .looking import list_, show, stats
from .pruning import prune
from .schedules import schedules
from .worker import worker

__all__ = ["taskengine"]


@click.group(context_settings={"auto_envvar_prefix": "TASKENGINE"})
def taskengine() -> None:
    """Durable tasks in the app's own database."""


for _command in (worker, migrate, check, enqueue, list_, show, why, retry, retry_dead, cancel, delete, prune, stats, schedules):
    taskengine.add_command(_command)

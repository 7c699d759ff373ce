"""``flask taskengine``: what people and deployments do from a shell. One module for each group of commands."""

from __future__ import annotations

import click

from .deployment import migrate
from .worker import worker

__all__ = ["taskengine"]


@click.group(context_settings={"auto_envvar_prefix": "TASKENGINE"})
def taskengine() -> None:
    """Durable tasks in the app's own database: run them, look at them, act on them."""


for _command in (worker, migrate):
    taskengine.add_command(_command)

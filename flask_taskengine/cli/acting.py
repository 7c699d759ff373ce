"""Commands that act on tasks."""

from __future__ import annotations

import click

from ..domain.states import TaskStatus
from ..engine import manage
from .command import answer, command, current_host, json_option, task_id_argument, transaction

_reset_option = click.option("--reset-attempts", is_flag=True, allow_from_autoenv=False, help="Count attempts from 0 again.")


@command()
@task_id_argument
@_reset_option
@json_option
def retry(task_id: int, reset_attempts: bool, as_json: bool) -> None:
    """Run an ended task once more.

    It must be DEAD, FAILED or CANCELLED, and becomes PENDING, due now. Without --reset-attempts a task whose attempts
    are exhausted gets one more.

    Example: flask taskengine retry 4711 --reset-attempts
    """
    host = current_host()
    with transaction(host):
        host.sender.retry(task_id, reset_attempts=reset_attempts)
    answer(as_json, {"id": task_id, "status": TaskStatus.PENDING}, f"task {task_id} is PENDING, due now")


@command()
@click.option("--type", "task_type", help="Only tasks of this type.")
@_reset_option
@json_option
def retry_dead(task_type: str | None, reset_attempts: bool, as_json: bool) -> None:
    """Run all DEAD tasks once more.

    They become PENDING, due now; those whose attempts are exhausted get one more.

    Example: flask taskengine retry-dead --type email.send
    """
    with transaction(current_host()) as t:
        requeued = manage.retry_dead(t.connection, t.tables, task_type, reset_attempts=reset_attempts)
    answer(as_json, {"requeued": requeued}, f"{requeued} tasks are PENDING again")


@command()
@task_id_argument
@json_option
def cancel(task_id: int, as_json: bool) -> None:
    """Cancel a task, or ask a running one to end.

    A running task stays RUNNING until its handler has ended.

    Example: flask taskengine cancel 4711
    """
    host = current_host()
    with transaction(host):
        status = host.sender.cancel(task_id)
    asked = f"task {task_id} is running: it has been asked to end"
    answer(as_json, {"id": task_id, "status": status}, asked if status is TaskStatus.RUNNING else f"task {task_id} is CANCELLED")


@command()
@task_id_argument
@json_option
def delete(task_id: int, as_json: bool) -> None:
    """Remove a task that is not running.

    Its failed attempts are removed with it.

    Example: flask taskengine delete 4711
    """
    host = current_host()
    with transaction(host):
        host.sender.delete(task_id)
    answer(as_json, {"id": task_id, "deleted": True}, f"task {task_id} is deleted")

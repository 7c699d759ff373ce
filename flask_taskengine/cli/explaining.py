"""The command that says why a task does not run."""

from __future__ import annotations

from typing import Any

from ..engine.explain import explain
from ..engine.presentation import plain_fields, printable
from .command import answer, command, current_host, json_option, task_id_argument, transaction


@command()
@task_id_argument
@json_option
def why(task_id: int, as_json: bool) -> None:
    """Say why a task does not run.

    Of one that runs or has ended it says how. All times are the database's.

    Example: flask taskengine why 4711
    """
    host = current_host()
    with transaction(host) as t:
        told = explain(t.connection, t.dialect, host.settings, host.registry, task_id)
    details: dict[str, Any] = plain_fields(told.details)
    answer(
        as_json,
        {"code": told.code, "text": told.text, "details": details},
        printable(f"task {task_id} ({told.details['type']}): {told.text}"),
    )

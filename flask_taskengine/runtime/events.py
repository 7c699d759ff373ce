"""The fields that every signal about a claimed task carries."""

from __future__ import annotations

from typing import Any

from ..domain.task import Claimed


def facts(task: Claimed, node: str) -> dict[str, Any]:
    """Return ``task_id``, ``task_type``, ``attempt`` and ``node``."""
    return {"task_id": task.id, "task_type": task.type, "attempt": task.attempts, "node": node}

"""What the worker's own threads announce of a claimed task, or of the run of a schedule."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from blinker import NamedSignal

from ..domain.task import Claimed
from .host import Host

_logger = logging.getLogger("flask_taskengine")


def tell(signal: NamedSignal, host: Host, **fields: Any) -> None:
    """Announce something from a thread of the worker's, which outlives also a receiver that wants to exit."""
    try:
        host.announce(signal, **fields)
    except BaseException:
        _logger.exception("a receiver of %s tried to end a thread of the worker", signal.name)


def facts(task: Claimed, node: str) -> dict[str, Any]:
    """Return ``task_id``, ``task_type``, ``attempt``, ``token`` and ``node``."""
    return {"task_id": task.id, "task_type": task.type, "attempt": task.attempts, "token": task.claims, "node": node}


def occurrence_facts(task: Claimed, node: str, name: str, scheduled_at: datetime) -> dict[str, Any]:
    """Return ``schedule``, ``task_id``, ``attempt``, ``node`` and ``scheduled_at``."""
    return {"schedule": name, "task_id": task.id, "attempt": task.attempts, "node": node, "scheduled_at": scheduled_at}

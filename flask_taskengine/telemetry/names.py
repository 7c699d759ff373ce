"""Every name that telemetry shows to the outside, with its meaning: declared here once, documented by ``reference``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# --- spans ------------------------------------------------------------------------------------------------------------

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
TASK_TYPE: Final = "taskengine.task.type"
TASK_ID: Final = "taskengine.task.id"
TASK_CREATED: Final = "taskengine.task.created"
TASK_ATTEMPT: Final = "taskengine.task.attempt"
TASK_PRIORITY: Final = "taskengine.task.priority"
TASK_WAITED: Final = "taskengine.task.queue_wait"
TASK_OUTCOME: Final = "taskengine.task.outcome"
NODE: Final = "taskengine.node"

SPAN_ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        SYSTEM: "both: `flask_taskengine`",
        OPERATION: "both: `enqueue` or `process`",
        OPERATION_TYPE: "both: `send` or `process`",
        DESTINATION: "both: the task type; an `enqueue_many` of several types has none",
        MESSAGE_ID: "both: the task's id as text; an `enqueue_many` has none",
        BATCH_COUNT: "enqueue: how many tasks an `enqueue_many` writes",
        TASK_TYPE: "both: the task type; an `enqueue_many` of several types has none",
        TASK_ID: "both: the task's id; an `enqueue_many` has none",
        TASK_CREATED: "enqueue: false where the idempotency key existed",
        TASK_ATTEMPT: "process: number of the attempt, from 1",
        TASK_PRIORITY: "both: the priority; an `enqueue_many` has none",
        TASK_WAITED: "process: seconds from due to the claim, by the database's clock",
        TASK_OUTCOME: "process: succeeded, retried, failed, dead, cancelled, requeued or lease_lost",
        NODE: "process: the node that runs it",
        ERROR_TYPE: "process: the class of the error, where the attempt failed",
    }
)
"""The attributes of the spans ``enqueue TYPE`` (producer) and ``process TYPE`` (consumer)."""

OUTCOMES: Mapping[str, str] = MappingProxyType(
    {
        "task_succeeded": "succeeded",
        "task_retried": "retried",
        "task_failed": "failed",
        "task_dead": "dead",
        "task_cancelled": "cancelled",
        "task_requeued": "requeued",
        "task_lease_lost": "lease_lost",
    }
)
"""How an attempt ended, by the signal that says so."""

# --- log records ------------------------------------------------------------------------------------------------------

RECORD_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "task_id": "the task's id",
        "task_type": "its type",
        "attempt": "number of the attempt, from 1",
        "trace_id": "with tracing: the trace, 32 hexadecimal digits",
        "span_id": "with tracing: the span, 16 hexadecimal digits",
    }
)
"""What the filter ``TaskFields`` gives to every record of a running task."""


def reference() -> str:
    """Return the span attributes and record fields as Markdown, as they stand in the documentation."""
    return "\n".join(
        [
            "### Attributes of spans",
            "",
            *_table("attribute", SPAN_ATTRIBUTES),
            "### Fields of log records",
            "",
            *_table("field", RECORD_FIELDS),
        ]
    )


def _table(head: str, rows: Mapping[str, str]) -> list[str]:
    return [f"| {head} | meaning |", "|---|---|", *(f"| `{name}` | {meaning} |" for name, meaning in rows.items()), ""]

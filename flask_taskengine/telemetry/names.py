"""Every name that telemetry shows to the outside, with its meaning: declared here once, documented by ``reference``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

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

# --- metrics ----------------------------------------------------------------------------------------------------------

OTHER: Final = "_other"
"""The label of types beyond ``MOST_TYPES``."""
MOST_TYPES: Final = 100
"""Types that have no processor here and still get a label of their own; those with a processor always do."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric as Prometheus knows it; counters get ``_total`` behind their name."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    of_queue: bool = False
    """Read from the database at a scrape, the same at every process."""

    @property
    def shown(self) -> str:
        """The name as it stands in queries."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_TYPE = ("type",)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

ENQUEUED = Metric("taskengine_tasks_enqueued", "counter", "Tasks that were written, after the commit.", _TYPE)
DEDUPLICATED = Metric("taskengine_tasks_deduplicated", "counter", "Enqueues that found the task with their idempotency key.", _TYPE)
CLAIMED = Metric("taskengine_tasks_claimed", "counter", "Tasks that were claimed.", _TYPE)
STARTED = Metric("taskengine_attempts_started", "counter", "Attempts whose handler was about to be called.", _TYPE)
FINISHED = Metric(
    "taskengine_attempts_finished",
    "counter",
    "Attempts that ended, by `outcome`: succeeded, retried, failed, dead, cancelled (also tasks that never ran) or requeued.",
    ("type", "outcome"),
)
TIMED_OUT = Metric("taskengine_timeouts", "counter", "Attempts that overran their timeout.", _TYPE)
LEASES_LOST = Metric("taskengine_leases_lost", "counter", "Attempts that were rolled back since their lease was lost.", _TYPE)
REQUEUED = Metric(
    "taskengine_tasks_requeued",
    "counter",
    "Tasks that are PENDING again without a failure of their own, by `reason`: orphaned, released, snoozed or retry (by hand).",
    ("type", "reason"),
)
RUN_TIME = Metric("taskengine_run_seconds", "histogram", "How long attempts took.", _TYPE, _LONG)
QUEUE_WAIT = Metric("taskengine_queue_wait_seconds", "histogram", "From due to the claim, by the database's clock.", _TYPE, _LONG)
CLAIM_TIME = Metric("taskengine_claim_seconds", "histogram", "How long a claim took, also one that got nothing.", (), _SHORT)
IN_FLIGHT = Metric("taskengine_in_flight", "gauge", "Attempts that run in these processes.")
SLOTS = Metric("taskengine_slots", "gauge", "Tasks that these processes run at once, at most.")

TASKS = Metric(
    "taskengine_tasks",
    "gauge",
    "Live tasks by `status`, PENDING or RUNNING. Of a type 100,000 PENDING ones are counted; more read as that.",
    ("type", "status"),
    of_queue=True,
)
DUE = Metric("taskengine_due_tasks", "gauge", "PENDING tasks whose time has come, of those counted.", _TYPE, of_queue=True)
OLDEST_DUE = Metric("taskengine_oldest_due_seconds", "gauge", "How long the earliest due task has been due.", _TYPE, of_queue=True)
NODES = Metric("taskengine_nodes", "gauge", "Nodes that hold their lease.", of_queue=True)
LIMIT = Metric("taskengine_limit", "gauge", "The limit in force, by `scope`: cluster_wide or per_node.", ("type", "scope"), of_queue=True)
PAUSED = Metric("taskengine_paused", "gauge", "1 while the type is paused; the type `*` stands for all.", _TYPE, of_queue=True)
DEAD_TUPLES = Metric(
    "taskengine_dead_tuples", "gauge", "Dead rows in the task table that vacuum has to remove (PostgreSQL).", of_queue=True
)
NOTIFY_QUEUE = Metric(
    "taskengine_notify_queue_ratio", "gauge", "How full the server's queue of notifications is, 0 to 1 (PostgreSQL).", of_queue=True
)
QUEUE_READ = Metric("taskengine_queue_read", "gauge", "1 if the gauges of the queue could be read; else they are left out.", of_queue=True)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

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


def reference() -> dict[str, str]:
    """Return the parts of the documentation that are made from these names, as Markdown."""
    own = [metric for metric in METRICS if not metric.of_queue]
    queue = [metric for metric in METRICS if metric.of_queue]
    return {
        "span-attributes": _table("attribute", SPAN_ATTRIBUTES),
        "record-fields": _table("field", RECORD_FIELDS),
        "process-metrics": _metrics(own),
        "queue-metrics": _metrics(queue),
    }


def _table(head: str, rows: Mapping[str, str]) -> str:
    return "\n".join([f"| {head} | meaning |", "|---|---|", *(f"| `{name}` | {meaning} |" for name, meaning in rows.items())]) + "\n"


def _metrics(metrics: list[Metric]) -> str:
    rows = [f"| `{one.shown}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.meaning} |" for one in metrics]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"

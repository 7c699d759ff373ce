"""What the engine announces, and how: code announces, others log, trace and count.

Each signal is declared here once, with what it carries; ``reference`` makes the documentation of it. A receiver takes
``(sender, **fields)``: the sender is the ``TaskEngine``, and fields may be added.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from types import MappingProxyType
from typing import Any

from blinker import NamedSignal, Namespace

_logger = logging.getLogger(__name__)

namespace = Namespace()

_declared: dict[str, tuple[str, ...]] = {}
declared = MappingProxyType(_declared)
"""The fields of each signal, by its name."""

FIELDS = MappingProxyType(
    {
        "task_id": "the task's id",
        "task_type": "its type",
        "attempt": "number of the attempt, from 1; 0 where the task was never claimed",
        "token": "the fencing token, raised by each claim; 0 where the task was never claimed",
        "node": "the node that acts; None for an act of a person or the code",
        "waited": "seconds from due to the claim, by the database's clock",
        "duration": "seconds of this attempt, None where the task never ran; seconds that the claim took",
        "failure": "the error: `error_class`, `message`, `traceback`; None where a run of a schedule was cancelled",
        "delay": "seconds until it is due again",
        "timeout": "the timeout in seconds",
        "reason": (
            "`orphaned`: its node died, after `task_retried`; `released`: its worker stopped; `snoozed`: by the handler; `retry`: by hand"
        ),
        "claimed": "how many tasks it got",
        "label": "what people call the node (`--node-id`)",
        "concurrency": "how many tasks it runs at once",
        "expired": "the node that is gone",
        "schedule": "the schedule's name",
        "scheduled_at": "the regular time of the occurrence, or when it was asked for by hand",
        "next_at": "when the schedule runs next, None where that is not known; after a crash, when it is tried again",
        "retried": "whether it is tried again",
        "first": "the first occurrence that was missed",
        "until": "the moment up to which they were",
        "policy": "what becomes of them: `skip`, `once` or `all`",
    }
)
"""What each field means, whichever signal carries it."""

_TASK = ("task_id", "task_type")
_ATTEMPT = (*_TASK, "attempt", "token", "node")


def _declare(name: str, meaning: str, *fields: str) -> NamedSignal:
    _declared[name] = fields
    return namespace.signal(name, meaning)


task_enqueued = _declare("task_enqueued", "A new task was written and its transaction has committed.", *_TASK)
task_deduplicated = _declare(
    "task_deduplicated", "An enqueue found the task that has its idempotency key, and its transaction has committed.", *_TASK
)
task_claimed = _declare("task_claimed", "A node has claimed the task; the claim has committed.", *_ATTEMPT)
task_started = _declare("task_started", "A node is about to call the handler.", *_ATTEMPT, "waited")
task_succeeded = _declare("task_succeeded", "The task is SUCCEEDED and that has committed.", *_ATTEMPT, "duration")
task_retried = _declare("task_retried", "The attempt failed; the task is PENDING again.", *_ATTEMPT, "duration", "failure", "delay")
task_failed = _declare("task_failed", "The task is FAILED: no retry can mend its error.", *_ATTEMPT, "duration", "failure")
task_dead = _declare("task_dead", "The task is DEAD: its attempts are exhausted.", *_ATTEMPT, "duration", "failure")
task_cancelled = _declare("task_cancelled", "The task is CANCELLED.", *_ATTEMPT, "duration")
task_timed_out = _declare(
    "task_timed_out",
    "The attempt overran its timeout; what that means for the task follows as another signal.",
    *_ATTEMPT,
    "timeout",
)
task_lease_lost = _declare(
    "task_lease_lost", "This node no longer holds the task: the attempt's writes are rolled back.", *_ATTEMPT, "duration"
)
task_requeued = _declare("task_requeued", "The task is PENDING again without a failure of its own.", *_ATTEMPT, "reason", "duration")

claim_made = _declare("claim_made", "A node has asked the database for due tasks.", "node", "duration", "claimed")

node_joined = _declare("node_joined", "A worker process has registered a node, and may claim from now on.", "node", "label", "concurrency")
node_left = _declare("node_left", "A worker process has ended, and so has its node.", "node")
node_lost = _declare("node_lost", "A worker process has lost its lease: what it runs is void. It joins again as another node.", "node")
node_expired = _declare(
    "node_expired", "Another node that died or was silent for too long has been expired, and its tasks are taken back.", "node", "expired"
)

# Those of a schedule follow the task's own.
_RUN = ("schedule", "task_id", "attempt", "node", "scheduled_at")
schedule_started = _declare("schedule_started", "A run of a schedule is about to begin.", *_RUN)
schedule_finished = _declare("schedule_finished", "A run of a schedule has succeeded and that has committed.", *_RUN, "duration", "next_at")
schedule_crashed = _declare(
    "schedule_crashed", "A run of a schedule has failed, timed out or lost its node.", *_RUN, "duration", "failure", "next_at", "retried"
)
schedule_missed = _declare("schedule_missed", "Occurrences of a schedule were due and are not run.", "schedule", "first", "until", "policy")


def reference() -> str:
    """Return the signals and their fields as Markdown, as they stand in the documentation."""
    signals = [f"| `{name}` | {namespace[name].__doc__} | {', '.join(f'`{one}`' for one in fields)} |" for name, fields in declared.items()]
    fields = [f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items()]
    return "\n".join(["| signal | sent when | fields |", "|---|---|---|", *signals, "", "| field | meaning |", "|---|---|", *fields]) + "\n"


_blamed: dict[object, object] = {}
"""Receivers whose failure has been logged, by identity; the value keeps or watches the receiver, so that no identity is reused."""


def emit(signal: NamedSignal, sender: Any, /, **fields: Any) -> None:
    """Announce something to every receiver of ``signal``; returns nothing and raises nothing of theirs.

    A receiver that raises is logged once and changes nothing for the caller or for the other receivers. What is no
    ``Exception`` passes: an interrupt of the handler, ``KeyboardInterrupt`` and the exit of the process are not the receiver's.
    """
    if not signal.receivers or signal.is_muted:
        return
    for receiver in signal.receivers_for(sender):
        try:
            returned = receiver(sender, **fields)
            if returned is not None and inspect.iscoroutine(returned):
                returned.close()
                raise TypeError("a receiver must be a plain function, a coroutine function can not be called here")
        except Exception:
            if _is_first_failure(receiver):
                _logger.exception("receiver %r of %s raised; this is logged once per receiver", receiver, signal.name)


def _is_first_failure(receiver: Any) -> bool:
    # A bound method is made anew at each look-up, so it is known by its two parts.
    owner, part = (receiver.__self__, receiver.__func__) if inspect.ismethod(receiver) else (receiver, None)
    key = (id(owner), id(part))
    mark: object
    try:
        mark = weakref.ref(owner, lambda _: _blamed.pop(key, None))
    except TypeError:
        mark = (receiver,)
    return _blamed.setdefault(key, mark) is mark

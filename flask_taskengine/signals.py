"""What the engine announces, and how: code announces, others log, trace and count.

Every signal of a task carries ``task_id`` and ``task_type``; all but ``task_enqueued`` carry ``attempt`` (from 1; 0 where the task
was never claimed) and ``node`` (the one that acts; ``None`` for an act of a person or the code). What a signal carries
beside these stands with it. A receiver takes ``(sender, **fields)``: fields may be added.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from typing import Any

from blinker import NamedSignal, Namespace

_logger = logging.getLogger(__name__)

namespace = Namespace()

task_enqueued = namespace.signal("task_enqueued", "A new task was written and its transaction has committed.")
# task_id and task_type only.

task_claimed = namespace.signal("task_claimed", "A node has claimed the task; the claim has committed.")
# The common fields only.

task_started = namespace.signal("task_started", "A node is about to call the handler.")
# Also carries waited (seconds from due to the claim, by the database's clock).

task_succeeded = namespace.signal("task_succeeded", "The task is SUCCEEDED and that has committed.")
# Also carries duration (seconds of this attempt).

task_retried = namespace.signal("task_retried", "The attempt failed; the task is PENDING again.")
# Also carries duration, failure (domain.outcome.Failure), delay (seconds until it is due).

task_failed = namespace.signal("task_failed", "The task is FAILED: no retry can mend its error.")
# Also carries duration, failure.

task_dead = namespace.signal("task_dead", "The task is DEAD: its attempts are exhausted.")
# Also carries duration, failure.

task_cancelled = namespace.signal("task_cancelled", "The task is CANCELLED.")
# Also carries duration (None where it never ran).

task_timed_out = namespace.signal(
    "task_timed_out", "The attempt overran its timeout; what that means for the task follows as another signal."
)
# Also carries timeout (seconds).

task_lease_lost = namespace.signal("task_lease_lost", "This node no longer holds the task: the attempt's writes are rolled back.")
# Also carries token (the fencing token that is out of date).

task_requeued = namespace.signal("task_requeued", "The task is PENDING again without a failure of its own.")
# Also carries reason ("orphaned", after a task_retried; "released", "snoozed", or "retry", the last by hand).

# Those of a schedule follow the task's own. All carry schedule (its name); all but the last also task_id, attempt, node
# and scheduled_at (the regular time of the occurrence, or when it was asked for by hand).

schedule_started = namespace.signal("schedule_started", "A run of a schedule is about to begin.")
# The common fields only.

schedule_finished = namespace.signal("schedule_finished", "A run of a schedule has succeeded and that has committed.")
# Also carries duration (seconds), next_at (when the schedule runs next; None where that is not known).

schedule_crashed = namespace.signal("schedule_crashed", "A run of a schedule has failed, timed out or lost its node.")
# Also carries duration, failure (domain.outcome.Failure; None where it was cancelled), next_at (of the retry, if there is one), retried.

schedule_missed = namespace.signal("schedule_missed", "Occurrences of a schedule were due and are not run.")
# Carries schedule, first (the first of them), until (the moment up to which), policy ("skip", "once" or "all").

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
            if inspect.iscoroutinefunction(receiver):
                raise TypeError("a receiver must be a plain function, a coroutine function can not be called here")
            receiver(sender, **fields)
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

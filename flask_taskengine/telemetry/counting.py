"""Counts what the engine announces; where the numbers go is a recorder's affair, so this needs no library."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

from ..engine.registry import Registry
from . import names
from .names import Metric

Fields = Mapping[str, Any]
Count = Callable[[], object]
Note = Callable[[float], object]

_logger = logging.getLogger("flask_taskengine")


class Recorder(Protocol):
    """Keeps the numbers of this process. Each is asked for once, since it is used for every task."""

    def counter(self, metric: Metric, labels: tuple[str, ...]) -> Count:
        """Return what counts one more."""

    def histogram(self, metric: Metric, labels: tuple[str, ...]) -> Note:
        """Return what adds a value to a histogram."""

    def gauge(self, metric: Metric) -> Note:
        """Return what sets a gauge."""


class Types:
    """The labels of task types: those with a processor here, so many others, and one for all that is beyond that."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._others: set[str] = set()

    def label(self, task_type: str) -> str:
        """Return the label of a type."""
        if task_type in self._registry or task_type in self._others:
            return task_type
        if len(self._others) < names.MOST_TYPES:
            self._others.add(task_type)
            return task_type
        return names.OTHER

    def known(self) -> set[str]:
        """Return the labels that have been given, and those of the types with a processor."""
        return {*self._registry.types(), *self._others}


class _OfType:
    """What counts the events of one type; made as it is needed, so that a process shows only what it has."""

    def __init__(self, label: str, recorders: Sequence[Recorder]) -> None:
        self._label = label
        self._recorders = recorders
        self._counters: dict[tuple[Metric, str], Count] = {}

    @cached_property
    def claimed(self) -> Count:
        return self.counter(names.CLAIMED)

    @cached_property
    def started(self) -> Count:
        return self.counter(names.STARTED)

    @cached_property
    def waited(self) -> Note:
        return _all([one.histogram(names.QUEUE_WAIT, (self._label,)) for one in self._recorders])

    @cached_property
    def ran(self) -> Note:
        return _all([one.histogram(names.RUN_TIME, (self._label,)) for one in self._recorders])

    def counter(self, metric: Metric, *labels: str) -> Count:
        key = metric, labels[0] if labels else ""
        count = self._counters.get(key)
        if count is None:
            count = self._counters[key] = _all([one.counter(metric, (self._label, *labels)) for one in self._recorders])
        return count


class Counting:
    """Follows the events of one engine and tells the recorders."""

    def __init__(self, registry: Registry) -> None:
        self.types = Types(registry)
        self._recorders: list[Recorder] = []
        self._running: set[tuple[int, int]] = set()
        self._slots: dict[str, int] = {}
        self._blamed = False
        self._followed: dict[str, Callable[[Fields], None]] = {
            "task_enqueued": partial(self._counted, names.ENQUEUED),
            "task_deduplicated": partial(self._counted, names.DEDUPLICATED),
            "task_claimed": self._claimed,
            "task_started": self._started,
            "task_timed_out": partial(self._counted, names.TIMED_OUT),
            "task_lease_lost": self._lease_lost,
            "task_requeued": self._requeued,
            "claim_made": self._claim_made,
            "node_joined": self._node_joined,
            "node_left": self._node_gone,
            "node_lost": self._node_gone,
        }
        for outcome in ("succeeded", "retried", "failed", "dead", "cancelled"):
            self._followed[f"task_{outcome}"] = partial(self._finished, outcome)
        self._ask_recorders()

    def take(self, name: str, fields: Fields) -> None:
        """Count an event; raises nothing, whatever a registry of the app does."""
        follow = self._followed.get(name)
        if follow is None:
            return
        try:
            follow(fields)
        except Exception:
            if not self._blamed:
                self._blamed = True
                _logger.exception("counting %s failed; the tasks are not affected, and this is logged once", name)

    def record_also_in(self, recorder: Recorder) -> None:
        """Record in one more recorder; in one that has been named before, nothing changes."""
        if recorder not in self._recorders:
            self._recorders.append(recorder)
            self._ask_recorders()

    def record_in(self, recorder: Recorder) -> None:
        """Record in this recorder alone, from nothing: this process is a new one."""
        self._recorders = [recorder]
        self._running.clear()
        self._slots.clear()
        self._ask_recorders()

    def _ask_recorders(self) -> None:
        self._types: dict[str, _OfType] = {}
        self._claim_time = _all([one.histogram(names.CLAIM_TIME, ()) for one in self._recorders])
        self._show_in_flight = _all([one.gauge(names.IN_FLIGHT) for one in self._recorders])
        self._show_slots = _all([one.gauge(names.SLOTS) for one in self._recorders])
        self._show_in_flight(len(self._running))
        self._show_slots(sum(self._slots.values()))

    def _of(self, task_type: str) -> _OfType:
        of = self._types.get(task_type)
        if of is None:
            # By the label: types beyond the bound fill nothing.
            label = self.types.label(task_type)
            of = self._types.get(label) or self._types.setdefault(label, _OfType(label, self._recorders))
        return of

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _counted(self, metric: Metric, fields: Fields) -> None:
        self._of(fields["task_type"]).counter(metric)()

    def _claimed(self, fields: Fields) -> None:
        self._of(fields["task_type"]).claimed()

    def _started(self, fields: Fields) -> None:
        of = self._of(fields["task_type"])
        self._running.add((fields["task_id"], fields["token"]))
        self._show_in_flight(len(self._running))
        of.started()
        of.waited(fields["waited"])

    def _finished(self, outcome: str, fields: Fields) -> None:
        of = self._of(fields["task_type"])
        of.counter(names.FINISHED, outcome)()
        if self._forget(fields) and fields["duration"] is not None:
            of.ran(fields["duration"])

    def _lease_lost(self, fields: Fields) -> None:
        self._forget(fields)
        self._counted(names.LEASES_LOST, fields)

    def _requeued(self, fields: Fields) -> None:
        self._of(fields["task_type"]).counter(names.REQUEUED, fields["reason"])()
        if fields["reason"] in ("released", "snoozed"):
            self._finished("requeued", fields)

    def _forget(self, fields: Fields) -> bool:
        """Take note that an attempt runs no more; return whether it ran in this process."""
        key = fields["task_id"], fields["token"]
        if key not in self._running:
            return False
        self._running.discard(key)
        self._show_in_flight(len(self._running))
        return True

    # --- claims and nodes ---------------------------------------------------------------------------------------------

    def _claim_made(self, fields: Fields) -> None:
        self._claim_time(fields["duration"])

    def _node_joined(self, fields: Fields) -> None:
        self._slots[fields["node"]] = fields["concurrency"]
        self._show_slots(sum(self._slots.values()))

    def _node_gone(self, fields: Fields) -> None:
        self._slots.pop(fields["node"], None)
        self._show_slots(sum(self._slots.values()))


def _all(calls: Sequence[Callable[..., object]]) -> Callable[..., object]:
    """Return one call that makes all of them, or the only one itself."""
    if len(calls) == 1:
        return calls[0]

    def make(*arguments: float) -> None:
        for call in calls:
            call(*arguments)

    return make

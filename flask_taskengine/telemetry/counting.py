"""Counts what the engine announces; where the numbers go is a recorder's affair, so this needs no library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .. import signals
from ..engine.registry import Registry
from . import names
from .names import Metric


class Recorder(Protocol):
    """Keeps the numbers of this process."""

    def count(self, metric: Metric, labels: tuple[str, ...]) -> None:
        """Count one more."""

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Add a value to a histogram."""

    def put(self, metric: Metric, value: float) -> None:
        """Set a gauge."""


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


class Counting:
    """Follows the signals of one engine and tells the recorders.

    Blinker does not keep its receivers alive: somebody has to keep this.
    """

    def __init__(self, sender: Any, registry: Registry) -> None:
        self.recorders: list[Recorder] = []
        self.types = Types(registry)
        self._running: set[tuple[int, int]] = set()
        self._slots: dict[str, int] = {}
        for name, receiver in self._receivers().items():
            signals.namespace[name].connect(receiver, sender)

    def record_in(self, recorder: Recorder) -> None:
        """Record in this recorder alone, from nothing: this process is a new one."""
        self.recorders = [recorder]
        self._running.clear()
        self._slots.clear()
        self._show_slots()
        self._show_in_flight()

    def _receivers(self) -> dict[str, Callable[..., None]]:
        return {
            "task_enqueued": self._enqueued,
            "task_deduplicated": self._deduplicated,
            "task_claimed": self._claimed,
            "task_started": self._started,
            "task_succeeded": self._succeeded,
            "task_retried": self._retried,
            "task_failed": self._failed,
            "task_dead": self._dead,
            "task_cancelled": self._cancelled,
            "task_timed_out": self._timed_out,
            "task_lease_lost": self._lease_lost,
            "task_requeued": self._requeued,
            "claim_made": self._claim_made,
            "node_joined": self._node_joined,
            "node_left": self._node_gone,
            "node_lost": self._node_gone,
        }

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _enqueued(self, _: Any, task_type: str, **fields: Any) -> None:
        self._count(names.ENQUEUED, task_type)

    def _deduplicated(self, _: Any, task_type: str, **fields: Any) -> None:
        self._count(names.DEDUPLICATED, task_type)

    def _claimed(self, _: Any, task_type: str, **fields: Any) -> None:
        self._count(names.CLAIMED, task_type)

    def _started(self, _: Any, task_type: str, task_id: int, token: int, waited: float, **fields: Any) -> None:
        self._running.add((task_id, token))
        self._show_in_flight()
        self._count(names.STARTED, task_type)
        self._observe(names.QUEUE_WAIT, task_type, waited)

    def _succeeded(self, _: Any, **fields: Any) -> None:
        self._finished("succeeded", **fields)

    def _retried(self, _: Any, **fields: Any) -> None:
        self._finished("retried", **fields)

    def _failed(self, _: Any, **fields: Any) -> None:
        self._finished("failed", **fields)

    def _dead(self, _: Any, **fields: Any) -> None:
        self._finished("dead", **fields)

    def _cancelled(self, _: Any, **fields: Any) -> None:
        self._finished("cancelled", **fields)

    def _timed_out(self, _: Any, task_type: str, **fields: Any) -> None:
        self._count(names.TIMED_OUT, task_type)

    def _lease_lost(self, _: Any, task_type: str, task_id: int, token: int, **fields: Any) -> None:
        self._forget(task_id, token)
        self._count(names.LEASES_LOST, task_type)

    def _requeued(self, _: Any, task_type: str, reason: str, **fields: Any) -> None:
        self._count(names.REQUEUED, task_type, reason)
        if reason in ("released", "snoozed"):
            self._finished("requeued", task_type=task_type, **fields)

    def _finished(self, outcome: str, *, task_type: str, task_id: int, token: int, duration: float | None, **fields: Any) -> None:
        self._count(names.FINISHED, task_type, outcome)
        if self._forget(task_id, token) and duration is not None:
            self._observe(names.RUN_TIME, task_type, duration)

    def _forget(self, task_id: int, token: int) -> bool:
        """Take note that an attempt runs no more; return whether it ran in this process."""
        if (task_id, token) not in self._running:
            return False
        self._running.discard((task_id, token))
        self._show_in_flight()
        return True

    # --- claims and nodes ---------------------------------------------------------------------------------------------

    def _claim_made(self, _: Any, duration: float, **fields: Any) -> None:
        for recorder in self.recorders:
            recorder.observe(names.CLAIM_TIME, (), duration)

    def _node_joined(self, _: Any, node: str, concurrency: int, **fields: Any) -> None:
        self._slots[node] = concurrency
        self._show_slots()

    def _node_gone(self, _: Any, node: str, **fields: Any) -> None:
        self._slots.pop(node, None)
        self._show_slots()

    # --- to the recorders ---------------------------------------------------------------------------------------------

    def _count(self, metric: Metric, task_type: str, *labels: str) -> None:
        label = self.types.label(task_type)
        for recorder in self.recorders:
            recorder.count(metric, (label, *labels))

    def _observe(self, metric: Metric, task_type: str, value: float) -> None:
        label = self.types.label(task_type)
        for recorder in self.recorders:
            recorder.observe(metric, (label,), value)

    def _show_in_flight(self) -> None:
        for recorder in self.recorders:
            recorder.put(names.IN_FLIGHT, len(self._running))

    def _show_slots(self) -> None:
        for recorder in self.recorders:
            recorder.put(names.SLOTS, sum(self._slots.values()))

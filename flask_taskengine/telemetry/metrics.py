"""Metrics for Prometheus, in a registry of this process.

With ``TASKENGINE_METRICS`` that is the default registry of ``prometheus_client``, which ``prometheus_flask_exporter`` shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from flask import Flask
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from ..runtime.host import Host
from . import names
from .counting import Count, Counting, Note
from .names import Metric
from .queue import QueueCollector

if TYPE_CHECKING:
    from ..extension import TaskEngine

_countings: WeakKeyDictionary[Any, Counting] = WeakKeyDictionary()
_recorders: WeakKeyDictionary[CollectorRegistry, PrometheusRecorder] = WeakKeyDictionary()


def register(app: Flask, registry: CollectorRegistry = REGISTRY) -> None:
    """Count what the engine of an app does, and show it with the gauges of its queue, in a registry of the app's choice.

    Example:
        >>> metrics = PrometheusMetrics(app, registry=CollectorRegistry())
        >>> register(app, metrics.registry)
    """
    engine: TaskEngine = app.extensions["taskengine"]
    register_host(engine.host(app), registry)


def register_host(host: Host, registry: CollectorRegistry = REGISTRY) -> None:
    """Do what ``register`` does, for what the runtime knows of an app."""
    recorder = _recorders.get(registry)
    if recorder is None:
        recorder = _recorders[registry] = PrometheusRecorder(registry)
    counting = counting_of(host)
    counting.record_also_in(recorder)
    recorder.queues.add(host, counting.types)


def counting_of(host: Host) -> Counting:
    """Return what counts for the engine of a host, which tells it from now on."""
    counting = _countings.get(host.sender)
    if counting is None:
        counting = _countings[host.sender] = Counting(host.registry)
    host.count = counting.take
    return counting


class PrometheusRecorder:
    """Keeps the numbers of this process in metrics of ``prometheus_client``, so that its mode for many processes sums them, too."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics: Mapping[str, Any] = {metric.name: _made(metric, registry) for metric in names.METRICS if not metric.of_queue}
        self.queues = QueueCollector()
        registry.register(self.queues)

    def counter(self, metric: Metric, labels: tuple[str, ...]) -> Count:
        """Return what counts one more."""
        count: Count = self._metrics[metric.name].labels(*labels).inc
        return count

    def histogram(self, metric: Metric, labels: tuple[str, ...]) -> Note:
        """Return what adds a value to a histogram."""
        whole = self._metrics[metric.name]
        note: Note = (whole.labels(*labels) if labels else whole).observe
        return note

    def gauge(self, metric: Metric) -> Note:
        """Return what sets a gauge."""
        note: Note = self._metrics[metric.name].set
        return note


def _made(metric: Metric, registry: CollectorRegistry) -> Any:
    match metric.kind:
        case "counter":
            return Counter(metric.name, metric.meaning, metric.labels, registry=registry)
        case "histogram":
            return Histogram(metric.name, metric.meaning, metric.labels, registry=registry, buckets=metric.buckets)
        case _:
            return Gauge(metric.name, metric.meaning, metric.labels, registry=registry, multiprocess_mode="livesum")

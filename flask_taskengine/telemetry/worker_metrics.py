"""The numbers of a worker's processes: each writes its own cells, and the sum of them is shown."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..runtime.cells import Cells
from ..runtime.desk import Desk
from . import names
from .counting import Count, Note
from .names import Metric


class CellRecorder:
    """Keeps the numbers of this process where its supervisor finds them."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    def counter(self, metric: Metric, labels: tuple[str, ...]) -> Count:
        """Return what counts one more."""
        place = self._place(metric, labels)
        return _nothing if place is None else partial(self._cells.add, place)

    def histogram(self, metric: Metric, labels: tuple[str, ...]) -> Note:
        """Return what adds a value: to its bucket, and to the sum behind them."""
        place, bounds, add = self._place(metric, labels), metric.buckets, self._cells.add_both
        if place is None:
            return _nothing
        total = place + len(bounds) + 1
        return lambda value: add(place + bisect_left(bounds, value), 1.0, total, value)

    def gauge(self, metric: Metric) -> Note:
        """Return what sets a gauge."""
        place = self._place(metric, ())
        return _nothing if place is None else partial(self._cells.put, place)

    def _place(self, metric: Metric, labels: tuple[str, ...]) -> int | None:
        return self._cells.place(json.dumps([metric.name, *labels]), _width(metric))


def _nothing(*_: float) -> None:
    """Count nothing: there is no room for more."""


class CellCollector(Collector):
    """Shows the sums of all processes; of gauges, of those that live."""

    def __init__(self, desks: list[Desk]) -> None:
        self._desks = desks

    def describe(self) -> list[Family]:
        """Name the metrics."""
        return [_family(metric) for metric in names.METRICS if not metric.of_queue]

    def collect(self) -> Iterator[Family]:
        """Sum up."""
        sums = self._sums()
        for metric in names.METRICS:
            if not metric.of_queue:
                family = _family(metric)
                for labels, numbers in sorted(sums[metric.name].items()):
                    _add(family, metric, labels, numbers)
                yield family

    def _sums(self) -> dict[str, dict[tuple[str, ...], list[float]]]:
        sums: dict[str, dict[tuple[str, ...], list[float]]] = {
            metric.name: {} if metric.labels else {(): [0.0] * _width(metric)} for metric in names.METRICS
        }
        gauges = {metric.name for metric in names.METRICS if metric.kind == "gauge"}
        for desk in self._desks:
            for key, numbers in desk.cells.read().items():
                name, *labels = json.loads(key)
                if name not in gauges or desk.seated.value:
                    of_metric = sums[name]
                    before = of_metric.get(tuple(labels), [0.0] * len(numbers))
                    of_metric[tuple(labels)] = [a + b for a, b in zip(before, numbers, strict=True)]
        return sums


def _width(metric: Metric) -> int:
    """Return how many numbers a metric has: one, or one for each bucket, for what is above them, and for the sum."""
    return len(metric.buckets) + 2 if metric.buckets else 1


def _family(metric: Metric) -> Family:
    match metric.kind:
        case "counter":
            return CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        case "histogram":
            return HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        case _:
            return GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)


def _add(family: Family, metric: Metric, labels: tuple[str, ...], numbers: list[float]) -> None:
    if isinstance(family, HistogramMetricFamily):
        bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(numbers[:-1]), strict=True)), numbers[-1])
    else:
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric(labels, numbers[0])

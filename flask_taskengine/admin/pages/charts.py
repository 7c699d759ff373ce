"""Charts as numbers that a template draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...domain.states import TaskStatus
from ...engine.insight import Bucket

WIDTH, HEIGHT = 600, 120


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart, in its own units."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in slices of time."""

    title: str
    bars: list[Bar]
    highest: int
    total: int
    summary: str
    """For those who do not see it."""


def chart(title: str, buckets: Sequence[Bucket], kinds: Mapping[str, Sequence[TaskStatus]]) -> Chart:
    """Stack the counts of some statuses, each kind in its colour."""
    sums = [sum(bucket.counts[status] for statuses in kinds.values() for status in statuses) for bucket in buckets]
    highest, total = max(sums, default=0), sum(sums)
    bars: list[Bar] = []
    step = WIDTH / max(1, len(buckets))
    for place, bucket in enumerate(buckets):
        base = float(HEIGHT)
        for kind, statuses in kinds.items():
            number = sum(bucket.counts[status] for status in statuses)
            if number:
                height = max(2.0, HEIGHT * number / highest)
                base -= height
                label = f"{bucket.begin:%H:%M} UTC: {number} {kind}"
                bars.append(Bar(round(place * step, 2), round(max(0.0, base), 2), round(step * 0.8, 2), round(height, 2), kind, label))
    busiest = max(range(len(sums)), key=sums.__getitem__) if total else None
    at = "" if busiest is None else f", most of them ({sums[busiest]}) from {buckets[busiest].begin:%H:%M} UTC on"
    return Chart(title, bars, highest, total, f"{title}: {total} in all{at}")

"""Figures for people: rates, percentiles, error rates, groups of errors that are one and the same."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b

from ..domain.states import TaskStatus
from ..store.overview import Ended, Lately

_FAILED = (TaskStatus.DEAD, TaskStatus.FAILED)
# What differs between two errors that are the same: numbers, addresses, ids, quoted values.
_VARIABLE = re.compile(
    r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\b|\b[0-9a-fA-F]{16,}\b|'[^']{0,200}'|\"[^\"]{0,200}\"|\d+(?:[.,:]\d+)*"
)
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Bucket:
    """What ended in one slice of time."""

    begin: datetime
    counts: Counter[TaskStatus]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of some durations, in seconds; None where there are none."""

    p50: float | None
    p95: float | None
    p99: float | None
    of: int
    """How many there were."""


@dataclass(slots=True)
class Group:
    """Dead tasks of one type whose errors say the same but for their numbers and values."""

    fingerprint: str
    type: str
    error: str
    """Of the newest."""
    ids: list[int] = field(default_factory=list)
    """Newest first."""
    first_at: datetime | None = None
    last_at: datetime | None = None


def buckets(lately: Lately, seconds: float, number: int) -> list[Bucket]:
    """Put what ended into slices of the same length, oldest first."""
    width = seconds / number
    begin = lately.now - timedelta(seconds=seconds)
    counts: list[Counter[TaskStatus]] = [Counter() for _ in range(number)]
    for one in lately.ended:
        place = int((one.finished_at - begin).total_seconds() / width)
        counts[max(0, min(number - 1, place))][one.status] += 1
    return [Bucket(begin + timedelta(seconds=width * place), count) for place, count in enumerate(counts)]


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Return percentiles by the nearest rank."""
    known = sorted(value for value in values if value is not None)

    def rank(share: float) -> float | None:
        return known[min(len(known) - 1, int(share * len(known)))] if known else None

    return Percentiles(rank(0.5), rank(0.95), rank(0.99), len(known))


def by_type(ended: Iterable[Ended]) -> dict[str, Counter[TaskStatus]]:
    """Count by type and status."""
    counts: defaultdict[str, Counter[TaskStatus]] = defaultdict(Counter)
    for one in ended:
        counts[one.type][one.status] += 1
    return dict(counts)


def error_rate(counts: Counter[TaskStatus]) -> float | None:
    """Return the share that ended DEAD or FAILED, of those that ran to an end; None where none did."""
    failed = sum(counts[status] for status in _FAILED)
    ran = failed + counts[TaskStatus.SUCCEEDED]
    return failed / ran if ran else None


def fingerprint(task_type: str, error: str) -> str:
    """Return what errors have in common that are the same but for their numbers and values."""
    line = next((line for line in error.splitlines() if line.strip()), "")[:_LONGEST]
    return blake2b(f"{task_type}\n{_VARIABLE.sub('#', line)}".encode(errors="replace"), digest_size=6).hexdigest()


def groups(dead: Sequence[tuple[int, str, TaskStatus, str, datetime]]) -> list[Group]:
    """Put dead tasks into groups, the largest first."""
    found: dict[str, Group] = {}
    for task_id, task_type, _, error, at in sorted(dead, key=lambda one: one[4], reverse=True):
        key = fingerprint(task_type, error)
        group = found.setdefault(key, Group(key, task_type, error, last_at=at))
        group.ids.append(task_id)
        group.first_at = at
    return sorted(found.values(), key=lambda group: -len(group.ids))

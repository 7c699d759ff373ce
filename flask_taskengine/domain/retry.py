"""When a failed attempt is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import EllipsisType, MappingProxyType
from typing import Any

from .durations import seconds
from .values import LARGEST, number, whole

RETRY_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"max_attempts": 5, "base_backoff": 5.0, "multiplier": 2.0, "max_backoff": 600.0, "jitter": 0.2}
)


@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """How often, and after which backoff, a failed task is tried again.

    The backoff after attempt *n* is ``base_backoff * multiplier ** (n - 1)``, at most ``max_backoff``, spread
    by ``jitter`` so that tasks which failed together do not come back together. Only the arguments that were given
    count when policies of several places are merged; the others have the engine's defaults.

    Args:
        max_attempts: attempts in all; ``None`` retries for ever.
        base_backoff: the first backoff, a duration.
        multiplier: growth from one backoff to the next, at least 1.
        max_backoff: the cap, a duration; never exceeded, jitter included.
        jitter: share of the backoff by which it may differ to either side, 0 to 1.

    Raises:
        ValueError: an argument is out of its range.
    """

    max_attempts: int | None
    base_backoff: float
    """Seconds."""
    multiplier: float
    max_backoff: float
    """Seconds."""
    jitter: float
    given: frozenset[str] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        max_attempts: int | EllipsisType | None = ...,
        base_backoff: timedelta | float | str | EllipsisType = ...,
        multiplier: float | EllipsisType = ...,
        max_backoff: timedelta | float | str | EllipsisType = ...,
        jitter: float | EllipsisType = ...,
    ) -> None:
        said = {
            "max_attempts": max_attempts,
            "base_backoff": base_backoff,
            "multiplier": multiplier,
            "max_backoff": max_backoff,
            "jitter": jitter,
        }
        for name, value in said.items():
            object.__setattr__(self, name, RETRY_DEFAULTS[name] if value is ... else _checked(name, value))
        object.__setattr__(self, "given", frozenset(name for name, value in said.items() if value is not ...))

    def over(self, base: RetryPolicy) -> RetryPolicy:
        """Return ``base`` with every argument that was given here put over it."""
        return RetryPolicy(**{name: getattr(place, name) for place in (base, self) for name in place.given})

    def backoff(self, attempt: int, rng: random.Random) -> float:
        """Return the seconds to wait after the failed attempt number ``attempt`` (from 1)."""
        raw = self._without_jitter(min(max(attempt, 1), LARGEST))
        spread = raw * rng.uniform(1 - self.jitter, 1 + self.jitter)
        # Folded back at the cap: clamping would bring half of all capped tasks back in the same instant.
        return spread if spread <= self.max_backoff else max(0.0, 2 * self.max_backoff - spread)

    def _without_jitter(self, attempt: int) -> float:
        if self.base_backoff == 0:
            return 0.0
        try:
            return min(self.base_backoff * self.multiplier ** (attempt - 1), self.max_backoff)
        except OverflowError:  # 2.0 ** 10_000 fits no float
            return self.max_backoff


def _attempts(value: object) -> int | None:
    try:
        return None if value is None else whole(value)
    except ValueError as error:
        raise ValueError(f"{error}, or None to retry for ever") from None


_CHECKS: Mapping[str, Callable[[Any], float | None]] = MappingProxyType(
    {
        "max_attempts": _attempts,
        "base_backoff": seconds,
        "multiplier": lambda value: number(value, 1),
        "max_backoff": seconds,
        "jitter": lambda value: number(value, 0, 1),
    }
)


def _checked(name: str, value: object) -> float | None:
    try:
        return _CHECKS[name](value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None

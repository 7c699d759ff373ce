"""When a failed attempt is tried again."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from .durations import seconds

RETRY_DEFAULTS: dict[str, Any] = {"max_attempts": 5, "base_backoff": 5.0, "multiplier": 2.0, "max_backoff": 600.0, "jitter": 0.2}


@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """How often, and after which backoff, a failed task is tried again.

    The backoff after attempt *n* is ``base_backoff * multiplier ** (n - 1)``, at most ``max_backoff``, spread
    by ``jitter`` so that tasks which failed together do not come back together. Only the arguments that were given
    count when policies of several places are merged.

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
    multiplier: float
    max_backoff: float
    jitter: float
    given: frozenset[str] = field(repr=False, compare=False)

    def __init__(
        self,
        max_attempts: int | None = ...,  # type: ignore[assignment]
        base_backoff: timedelta | float | str = ...,  # type: ignore[assignment]
        multiplier: float = ...,  # type: ignore[assignment]
        max_backoff: timedelta | float | str = ...,  # type: ignore[assignment]
        jitter: float = ...,  # type: ignore[assignment]
    ) -> None:
        said = {
            "max_attempts": max_attempts,
            "base_backoff": base_backoff,
            "multiplier": multiplier,
            "max_backoff": max_backoff,
            "jitter": jitter,
        }
        given = {name: value for name, value in said.items() if value is not ...}
        for name, value in (RETRY_DEFAULTS | given).items():
            object.__setattr__(self, name, _checked(name, value))
        object.__setattr__(self, "given", frozenset(given))

    def over(self, base: RetryPolicy) -> RetryPolicy:
        """Return ``base`` with every argument that was given here put over it."""
        given = {name: getattr(base, name) for name in base.given} | {name: getattr(self, name) for name in self.given}
        return RetryPolicy(**given)

    def backoff(self, attempt: int, rng: random.Random) -> float:
        """Return the seconds to wait after the failed attempt number ``attempt`` (from 1)."""
        if self.base_backoff == 0:
            return 0.0
        # In logarithms, since multiplier ** 10_000 overflows a float.
        growth = (max(attempt, 1) - 1) * math.log(self.multiplier)
        ceiling = math.log(self.max_backoff / self.base_backoff) if self.max_backoff > 0 else -math.inf
        raw = self.max_backoff if growth >= ceiling else self.base_backoff * math.exp(growth)
        spread = raw * rng.uniform(1 - self.jitter, 1 + self.jitter)
        # Folded back at the cap: clamping would bring half of all capped tasks back in the same instant.
        return spread if spread <= self.max_backoff else max(0.0, 2 * self.max_backoff - spread)


def _checked(name: str, value: Any) -> Any:
    if name == "max_attempts":
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"max_attempts is {value!r}: give a whole number from 1, or None to retry for ever")
        return value
    if name in ("base_backoff", "max_backoff"):
        try:
            return seconds(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}: give a number")
    if name == "multiplier" and value < 1:
        raise ValueError(f"multiplier is {value!r}: give a number from 1")
    if name == "jitter" and not 0 <= value <= 1:
        raise ValueError(f"jitter is {value!r}: give a number from 0 to 1")
    return float(value)

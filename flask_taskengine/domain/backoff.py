"""When a schedule's failed occurrence is tried again: series that grow in different ways."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from .durations import LONGEST, seconds
from .errors import InvalidArgument
from .values import whole

DEFAULT_ATTEMPTS = 5

Duration = timedelta | float | str


class Series(StrEnum):
    """How the wait grows from one failure to the next, in multiples of the base."""

    FIXED = "fixed"
    """1, 1, 1, 1"""
    LINEAR = "linear"
    """1, 2, 3, 4"""
    ARITHMETIC = "arithmetic"
    """1, 3, 5, 7"""
    GEOMETRIC = "geometric"
    """1, 2, 4, 8"""


@dataclass(frozen=True, slots=True)
class Backoff:
    """What a schedule does when a run fails: how often it is tried again, and after which wait.

    Made by ``none``, ``fixed``, ``linear``, ``arithmetic`` or ``geometric``. The waits have no jitter: an occurrence has
    no siblings that fail in the same moment. After ``max_attempts`` the schedule goes on with its next regular time.

    Example:
        >>> Backoff.geometric("1m", max_attempts=5, cap="10m")
        Backoff(series=<Series.GEOMETRIC: 'geometric'>, base=60.0, max_attempts=5, cap=600.0)
    """

    series: Series
    base: float
    """Seconds, to the millisecond."""
    max_attempts: int | None
    """Runs of one occurrence in all; ``None`` tries until one succeeds."""
    cap: float
    """Seconds; no wait is longer."""

    @classmethod
    def none(cls) -> Backoff:
        """Return the setting that tries nothing again."""
        return cls(Series.FIXED, 0.0, 1, 0.0)

    @classmethod
    def fixed(cls, base: Duration, max_attempts: int | None = DEFAULT_ATTEMPTS) -> Backoff:
        """Wait as long after every failure.

        Raises:
            InvalidArgument: an argument is out of its range; so do the other series.
        """
        return _backoff(Series.FIXED, base, max_attempts, None)

    @classmethod
    def linear(cls, base: Duration, max_attempts: int | None = DEFAULT_ATTEMPTS, cap: Duration | None = None) -> Backoff:
        """Wait 1, 2, 3, 4, … times the base, at most ``cap``."""
        return _backoff(Series.LINEAR, base, max_attempts, cap)

    @classmethod
    def arithmetic(cls, base: Duration, max_attempts: int | None = DEFAULT_ATTEMPTS, cap: Duration | None = None) -> Backoff:
        """Wait 1, 3, 5, 7, … times the base, at most ``cap``."""
        return _backoff(Series.ARITHMETIC, base, max_attempts, cap)

    @classmethod
    def geometric(cls, base: Duration, max_attempts: int | None = DEFAULT_ATTEMPTS, cap: Duration | None = None) -> Backoff:
        """Wait 1, 2, 4, 8, … times the base, at most ``cap``."""
        return _backoff(Series.GEOMETRIC, base, max_attempts, cap)

    def backoff(self, attempt: int, rng: random.Random | None = None) -> float:
        """Return the seconds to wait after the failed attempt number ``attempt`` (from 1), to the millisecond."""
        return min(self.base * self._times(max(attempt, 1)), self.cap)

    def _times(self, attempt: int) -> float:
        match self.series:
            case Series.FIXED:
                return 1
            case Series.LINEAR:
                return attempt
            case Series.ARITHMETIC:
                return 2 * attempt - 1
            case Series.GEOMETRIC:
                # The exponent is bounded, since 2.0 ** 1100 fits no float; long before, every wait is at its cap.
                return 2.0 ** min(attempt - 1, 1000)


def _backoff(series: Series, base: Duration, max_attempts: int | None, cap: Duration | None) -> Backoff:
    try:
        wait, most = milliseconds(base), LONGEST if cap is None else milliseconds(cap)
        attempts = None if max_attempts is None else whole(max_attempts)
    except ValueError as error:
        raise InvalidArgument(f"Backoff.{series}: {error}") from None
    return Backoff(series, wait, attempts, most)


def milliseconds(value: Duration) -> float:
    """Convert a duration to seconds, to the millisecond: what every database can store.

    Raises:
        ValueError: it is no duration, or shorter than a millisecond.
    """
    rounded = round(seconds(value), 3)
    if rounded < 0.001:
        raise ValueError(f"{value!r} is shorter than a millisecond: give a longer duration")
    return rounded

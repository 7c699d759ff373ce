"""The series of waits after failed runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from flask_taskengine import Backoff, InvalidArgument
from flask_taskengine.domain.durations import LONGEST


def waits(backoff: Backoff, count: int) -> list[float]:
    """Return the waits after the first failures."""
    return [backoff.backoff(attempt) for attempt in range(1, count + 1)]


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Backoff.fixed("1m"), [60, 60, 60, 60]),
        (Backoff.linear("1m"), [60, 120, 180, 240]),
        (Backoff.arithmetic("1m"), [60, 180, 300, 420]),
        (Backoff.geometric("1m"), [60, 120, 240, 480]),
        (Backoff.linear("1m", cap="150s"), [60, 120, 150, 150]),
        (Backoff.arithmetic(10, cap=timedelta(seconds=35)), [10, 30, 35, 35]),
        (Backoff.geometric(0.25, cap=1), [0.25, 0.5, 1, 1]),
        (Backoff.fixed("500ms"), [0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_r19_the_series_in_multiples_of_the_base(backoff: Backoff, expected: list[float]) -> None:
    """Fixed 1, 1, 1; linear 1, 2, 3; arithmetic 1, 3, 5, 7; geometric 1, 2, 4, 8; none beyond its cap."""
    assert waits(backoff, 4) == expected


@pytest.mark.parametrize("make", [Backoff.linear, Backoff.arithmetic, Backoff.geometric])
@pytest.mark.parametrize("cap", [None, "1h"])
def test_r19_a_hundred_failures_in_a_row(make: Callable[..., Backoff], cap: str | None) -> None:
    """However long it fails, the waits never shrink, are never negative and never beyond the cap, which every date can take."""
    series = waits(make("1m", None, cap), 100)
    assert series == sorted(series)
    assert series[0] == 60
    assert series[-1] <= (LONGEST if cap is None else 3600)
    assert waits(make("1m", None, cap), 100_000)[-1] <= LONGEST


def test_none_tries_nothing_again() -> None:
    """One attempt is all."""
    assert Backoff.none().max_attempts == 1


def test_the_number_of_attempts() -> None:
    """Five unless another one is given; None is no bound."""
    assert [Backoff.fixed(1).max_attempts, Backoff.fixed(1, 3).max_attempts, Backoff.fixed(1, max_attempts=None).max_attempts] == [
        5,
        3,
        None,
    ]


@pytest.mark.parametrize(("base", "attempts"), [("-1s", 3), ("0s", 3), (0.0001, 3), ("soon", 3), (1, 0), (1, -1), (1, True), (1, 1.5)])
def test_arguments_out_of_range_are_refused(base: str | float, attempts: int) -> None:
    """The error is one of the caller, at once."""
    with pytest.raises(InvalidArgument, match=r"Backoff\.geometric"):
        Backoff.geometric(base, max_attempts=attempts)
    with pytest.raises(InvalidArgument):
        Backoff.geometric("1m", cap=base if attempts == 3 else "x")

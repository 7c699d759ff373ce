"""When a failed attempt is tried again."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
import statistics
import sys
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_taskengine.domain.durations import LONGEST
from flask_taskengine.domain.retry import RETRY_DEFAULTS, RetryPolicy

ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "max_attempts": st.none() | st.integers(1, 2**31 - 1),
    "base_backoff": st.floats(0, LONGEST),
    "multiplier": st.floats(1, sys.float_info.max),
    "max_backoff": st.floats(0, LONGEST),
    "jitter": st.floats(0, 1),
}
SOME_ARGUMENTS = st.fixed_dictionaries({}, optional=ARGUMENTS)


def draws(policy: RetryPolicy, attempt: int, count: int = 4000) -> list[float]:
    """Draw many backoffs after the same attempt."""
    rng = random.Random(7)
    return [policy.backoff(attempt, rng) for _ in range(count)]


def test_the_backoff_grows_to_the_cap() -> None:
    """The backoff is base times multiplier to the power of the failed attempts before, and the cap from there on."""
    policy = RetryPolicy(base_backoff=5, multiplier=2, max_backoff=60, jitter=0)
    assert [policy.backoff(attempt, random.Random(1)) for attempt in range(1, 8)] == [5, 10, 20, 40, 60, 60, 60]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetryPolicy(base_backoff=5, multiplier=1, max_backoff=60, jitter=0), 5),
        (RetryPolicy(base_backoff=90, multiplier=1, max_backoff=60, jitter=0), 60),
        (RetryPolicy(base_backoff=90, multiplier=3, max_backoff=60, jitter=0), 60),
        (RetryPolicy(base_backoff=5, multiplier=2, max_backoff=0, jitter=1), 0),
        (RetryPolicy(base_backoff=0, multiplier=2, max_backoff=60, jitter=1), 0),
        (RetryPolicy(base_backoff=0, multiplier=2, max_backoff=0, jitter=1), 0),
        (RetryPolicy(base_backoff=5e-324, multiplier=1, max_backoff=60, jitter=0), 5e-324),
    ],
)
@pytest.mark.parametrize("attempt", [1, 10_000, 2**31 - 1, pytest.param(10**400, id="400 digits")])
def test_edges_of_the_backoff(policy: RetryPolicy, expected: float, attempt: int) -> None:
    """No growth, a base above the cap, a cap or base of 0: the same backoff after every attempt, however many there were."""
    assert policy.backoff(attempt, random.Random(1)) == expected


@pytest.mark.parametrize("multiplier", [1.001, 2, 1e300, sys.float_info.max])
def test_ten_thousand_failures_in_a_row_wait_for_the_cap(multiplier: float) -> None:
    """However many attempts have failed, the backoff is the cap within its jitter; nothing overflows."""
    policy = RetryPolicy(base_backoff=5, multiplier=multiplier, max_backoff="10m", jitter=0.2)
    rng = random.Random(3)
    late = [policy.backoff(attempt, rng) for attempt in range(9_000, 10_001)]
    assert all(600 * 0.8 <= backoff <= 600 for backoff in late)


@given(policy=SOME_ARGUMENTS, attempt=st.integers(0, 10**30), seed=st.integers())
def test_a_backoff_is_never_above_the_cap_nor_negative(policy: dict[str, Any], attempt: int, seed: int) -> None:
    """Whatever the policy, the attempt and the dice: from 0 to the cap."""
    made = RetryPolicy(**policy)
    assert 0 <= made.backoff(attempt, random.Random(seed)) <= made.max_backoff


def test_jitter_spreads_to_both_sides_below_the_cap() -> None:
    """Below the cap the backoffs lie evenly around the one without jitter."""
    spread = draws(RetryPolicy(base_backoff=100, max_backoff=1000, jitter=0.2), attempt=1)
    assert min(spread) >= 80
    assert max(spread) <= 120
    assert statistics.mean(spread) == pytest.approx(100, rel=0.01)
    assert statistics.pstdev(spread) == pytest.approx(40 / 12**0.5, rel=0.05)


@pytest.mark.parametrize("base", [600, 550, 480])
def test_jitter_does_not_bunch_tasks_at_the_cap(base: float) -> None:
    """Tasks that failed together come back spread out at the cap too: no instant gets more than its share."""
    spread = draws(RetryPolicy(base_backoff=base, multiplier=1, max_backoff=600, jitter=0.2), attempt=50)
    assert max(spread) <= 600
    assert min(spread) >= base * 0.8
    in_the_last_percent = sum(backoff > 594 for backoff in spread) / len(spread)
    assert in_the_last_percent < 0.08
    assert len(set(spread)) > 0.99 * len(spread)


def test_full_jitter_reaches_from_nothing_to_the_cap() -> None:
    """A jitter of 1 spreads capped tasks over the whole time to the cap."""
    spread = draws(RetryPolicy(base_backoff=600, multiplier=1, max_backoff=600, jitter=1), attempt=9)
    assert min(spread) < 6
    assert max(spread) > 594
    assert statistics.mean(spread) == pytest.approx(300, rel=0.03)


def test_without_jitter_the_backoff_is_exact() -> None:
    """A jitter of 0 draws the same backoff every time."""
    assert set(draws(RetryPolicy(base_backoff=3, multiplier=3, jitter=0), attempt=3)) == {27}


def test_the_defaults_are_those_of_the_design() -> None:
    """A policy of no arguments: 5 attempts, 5 s, doubled up to 10 min, a fifth of jitter."""
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.base_backoff, policy.multiplier, policy.max_backoff, policy.jitter) == (5, 5, 2, 600, 0.2)
    assert RetryPolicy(**RETRY_DEFAULTS) == policy


@given(one=SOME_ARGUMENTS, other=SOME_ARGUMENTS, third=SOME_ARGUMENTS)
def test_policies_merge_key_by_key(one: dict[str, Any], other: dict[str, Any], third: dict[str, Any]) -> None:
    """Of several policies the first that was given an argument has it; a default never hides a given value."""
    merged = RetryPolicy(**one).over(RetryPolicy(**other)).over(RetryPolicy(**third))
    expected = third | other | one
    assert merged == RetryPolicy(**expected)
    assert merged.given == set(expected)


def test_none_that_was_given_is_a_value() -> None:
    """``max_attempts=None`` retries for ever also over a policy that sets a number; left out it does not."""
    assert RetryPolicy(max_attempts=None).over(RetryPolicy(max_attempts=3)).max_attempts is None
    assert RetryPolicy(jitter=0).over(RetryPolicy(max_attempts=3)).max_attempts == 3


@pytest.mark.parametrize(
    ("argument", "value", "remedy"),
    [
        ("max_attempts", 0, "give a whole number from 1 to 2147483647, or None to retry for ever"),
        ("max_attempts", -1, "or None to retry for ever"),
        ("max_attempts", 2**31, "to 2147483647"),
        pytest.param("max_attempts", 10**5000, "a value of type int", id="5000 digits"),
        ("max_attempts", True, "True can not be used"),
        ("max_attempts", 2.0, "give a whole number"),
        ("max_attempts", "3", "give a whole number"),
        ("base_backoff", -1, "give a duration from 0"),
        ("base_backoff", None, "give a timedelta"),
        pytest.param("base_backoff", 10**400, "give a duration from 0 to 100 years", id="400 digits of seconds"),
        ("max_backoff", float("inf"), "give a duration from 0 to 100 years"),
        ("max_backoff", "soon", "give a timedelta"),
        ("multiplier", 0.5, "give a number from 1"),
        ("multiplier", float("nan"), "give a number from 1"),
        pytest.param("multiplier", 10**400, "give a number from 1", id="400 digits of growth"),
        ("multiplier", True, "give a number from 1"),
        ("jitter", 1.1, "give a number from 0 to 1"),
        ("jitter", -0.1, "give a number from 0 to 1"),
        ("jitter", None, "give a number from 0 to 1"),
    ],
)
def test_a_wrong_argument_is_named_with_its_remedy(argument: str, value: Any, remedy: str) -> None:
    """A wrong argument is refused with its name, what was given and what to give instead."""
    with pytest.raises(ValueError, match=f"^{argument}: .*{remedy}"):
        RetryPolicy(**{argument: value})


def test_a_policy_is_a_value() -> None:
    """A policy can be compared, hashed, shown, copied, pickled and not changed; durations are kept in seconds."""
    policy = RetryPolicy(max_attempts=None, base_backoff=timedelta(minutes=1), max_backoff="2h")
    assert repr(policy) == "RetryPolicy(max_attempts=None, base_backoff=60.0, multiplier=2.0, max_backoff=7200.0, jitter=0.2)"
    assert hash(policy) == hash(RetryPolicy(None, 60, max_backoff=7200))
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert twin == policy
        assert twin.given == {"max_attempts", "base_backoff", "max_backoff"}
    assert dataclasses.replace(policy, jitter=0).jitter == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.jitter = 1  # type: ignore[misc]

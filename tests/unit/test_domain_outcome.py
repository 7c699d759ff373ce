"""The outcome of an attempt, in every case, and the table of transitions."""

from __future__ import annotations

import itertools
import random

import pytest

from flask_taskengine.domain.outcome import (
    Ending,
    Failure,
    Interrupted,
    Orphaned,
    Outcome,
    Raised,
    Rejected,
    Returned,
    Snoozed,
    TimedOut,
    Verdict,
    decide,
    failure_of,
)
from flask_taskengine.domain.retry import RetryPolicy
from flask_taskengine.domain.states import DELETABLE, ENDED, LIVE, RETRYABLE, TRANSITIONS, TaskStatus

BOOM = Failure("ValueError", "boom", "Traceback …")
LATE = Failure("TaskTimedOut", "timed out after 30 s")
ORPHANED = Failure("LeaseLostError", "node a-1 has been silent for 61 s")
POLICY = RetryPolicy(max_attempts=3, base_backoff=10, multiplier=2, max_backoff=60, jitter=0)

RETRIED = (Verdict.RETRIED, TaskStatus.PENDING)
DEAD = (Verdict.DEAD, TaskStatus.DEAD)

# The ending; what becomes of the task while attempts are left, and once they are exhausted; the delay; whether it counts; the failure kept.
TABLE: list[tuple[Ending, tuple[Verdict, TaskStatus], tuple[Verdict, TaskStatus], float | None, bool, Failure | None]] = [
    (Returned("1"), (Verdict.SUCCEEDED, TaskStatus.SUCCEEDED), (Verdict.SUCCEEDED, TaskStatus.SUCCEEDED), None, True, None),
    (Raised(BOOM), RETRIED, DEAD, 20.0, True, BOOM),
    (Raised(BOOM, after=7.0), RETRIED, DEAD, 7.0, True, BOOM),
    (Raised(BOOM, after=0.0), RETRIED, DEAD, 0.0, True, BOOM),
    (Rejected(BOOM), (Verdict.FAILED, TaskStatus.FAILED), (Verdict.FAILED, TaskStatus.FAILED), None, True, BOOM),
    (Snoozed(90.0), (Verdict.SNOOZED, TaskStatus.PENDING), (Verdict.SNOOZED, TaskStatus.PENDING), 90.0, False, None),
    (TimedOut(30.0), RETRIED, DEAD, 20.0, True, LATE),
    (Orphaned(ORPHANED.message), RETRIED, DEAD, 20.0, True, ORPHANED),
    (Interrupted(), (Verdict.RELEASED, TaskStatus.PENDING), (Verdict.RELEASED, TaskStatus.PENDING), None, False, None),
]
ENDINGS = [row[0] for row in TABLE]


def outcome_of(ending: Ending, *, attempts: int = 2, max_attempts: int | None = None, cancel_requested: bool = False) -> Outcome:
    """Decide with the policy of these tests."""
    return decide(
        ending, attempts=attempts, max_attempts=max_attempts, policy=POLICY, cancel_requested=cancel_requested, rng=random.Random(1)
    )


def test_the_table_has_every_ending() -> None:
    """No way for an attempt to end is missing from the tests below."""
    assert {type(ending) for ending in ENDINGS} == set(Ending.__args__)


@pytest.mark.parametrize(("ending", "with_attempts_left", "_exhausted", "delay", "counted", "failure"), TABLE, ids=repr)
def test_with_attempts_left(
    ending: Ending,
    with_attempts_left: tuple[Verdict, TaskStatus],
    _exhausted: object,
    delay: float | None,
    counted: bool,
    failure: Failure | None,
) -> None:
    """While attempts are left, an error, a timeout and a lost lease lead to a retry, the others to their own end."""
    outcome = outcome_of(ending)
    assert (outcome.verdict, outcome.status) == with_attempts_left
    assert (outcome.delay, outcome.counted, outcome.failure) == (delay, counted, failure)
    assert outcome.result == ("1" if isinstance(ending, Returned) else None)


@pytest.mark.parametrize(("ending", "_left", "exhausted", "delay", "counted", "failure"), TABLE, ids=repr)
def test_with_the_attempts_exhausted(
    ending: Ending,
    _left: object,
    exhausted: tuple[Verdict, TaskStatus],
    delay: float | None,
    counted: bool,
    failure: Failure | None,
) -> None:
    """The last attempt makes an error, a timeout and a lost lease DEAD, whatever delay was asked for; the others stay what they are."""
    outcome = outcome_of(ending, attempts=3)
    assert (outcome.verdict, outcome.status) == exhausted
    assert (outcome.delay, outcome.counted, outcome.failure) == (None if exhausted == DEAD else delay, counted, failure)


@pytest.mark.parametrize("attempts", [1, 3, 100])
@pytest.mark.parametrize("ending", ENDINGS, ids=repr)
def test_a_cancel_request_wins(ending: Ending, attempts: int) -> None:
    """A cancel request ends the task as CANCELLED however the attempt ended, and its error is kept."""
    expected = Outcome(Verdict.CANCELLED, TaskStatus.CANCELLED, failure=failure_of(ending))
    assert outcome_of(ending, attempts=attempts, cancel_requested=True) == expected


@pytest.mark.parametrize(
    ("own", "of_the_policy", "attempts", "dead"),
    [
        (None, 3, 2, False),
        (None, 3, 3, True),
        (None, 3, 4, True),
        (5, 3, 4, False),
        (5, 3, 5, True),
        (1, 3, 1, True),
        (1, None, 1, True),
        (None, None, 2**31 - 1, False),
    ],
)
def test_the_rows_own_max_attempts_wins(own: int | None, of_the_policy: int | None, attempts: int, dead: bool) -> None:
    """``max_attempts`` of the row wins over the policy's, and None in both retries for ever."""
    policy = RetryPolicy(max_attempts=of_the_policy)
    outcome = decide(Raised(BOOM), attempts=attempts, max_attempts=own, policy=policy, cancel_requested=False, rng=random.Random(1))
    assert outcome.status == (TaskStatus.DEAD if dead else TaskStatus.PENDING)


def test_every_outcome_is_a_transition_from_running() -> None:
    """``decide`` reaches exactly the statuses that the table of transitions allows after RUNNING."""
    reached = {
        outcome_of(ending, attempts=attempts, cancel_requested=cancel).status
        for ending, attempts, cancel in itertools.product(ENDINGS, [1, 3], [False, True])
    }
    assert reached == TRANSITIONS[TaskStatus.RUNNING]


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("ending", ENDINGS, ids=repr)
def test_only_a_task_that_waits_again_has_a_delay(ending: Ending, cancel: bool) -> None:
    """A delay, and an attempt given back, come with PENDING only; a result comes with SUCCEEDED only."""
    for attempts in (1, 3):
        outcome = outcome_of(ending, attempts=attempts, cancel_requested=cancel)
        if outcome.status is not TaskStatus.PENDING:
            assert outcome.delay is None
            assert outcome.counted
        if outcome.status is not TaskStatus.SUCCEEDED:
            assert outcome.result is None


def test_the_groups_of_statuses_follow_from_the_transitions() -> None:
    """A status has ended when no claim can follow; what is retryable may become PENDING, and only RUNNING can not be deleted."""
    assert set(TRANSITIONS) == set(TaskStatus)
    assert {TaskStatus.PENDING, TaskStatus.RUNNING} == LIVE
    assert LIVE.isdisjoint(ENDED)
    assert set(TaskStatus) == LIVE | ENDED
    assert {TaskStatus.FAILED, TaskStatus.DEAD, TaskStatus.CANCELLED} == RETRYABLE
    assert set(TaskStatus) - {TaskStatus.RUNNING} == DELETABLE
    assert all(TRANSITIONS[status] <= {TaskStatus.PENDING} for status in ENDED)


def test_a_failure_is_told_without_its_traceback() -> None:
    """A failure's text is class and message; its traceback, which can be long, is not in its ``repr``."""
    assert str(BOOM) == "ValueError: boom"
    assert str(Failure("KeyError", "")) == "KeyError"
    assert "Traceback" not in repr(Outcome(Verdict.DEAD, TaskStatus.DEAD, failure=BOOM))


def test_endings_and_outcomes_are_values() -> None:
    """Endings and outcomes can be compared, hashed and not changed."""
    assert len({*ENDINGS, *[type(ending)(**{name: getattr(ending, name) for name in ending.__slots__}) for ending in ENDINGS]}) == len(
        TABLE
    )
    with pytest.raises(AttributeError):
        outcome_of(Interrupted()).status = TaskStatus.DEAD  # type: ignore[misc]

"""Where claims begin to look while an open transaction keeps what is dead in the index."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from flask_taskengine.domain.task import Claimed
from flask_taskengine.store.lowwater import LowWater

START = datetime(2026, 1, 1, tzinfo=UTC)
SLOW, QUICK = 0.02, 0.001
EMAIL = ("email", 0)


class Clock:
    """A clock that the test moves; the database's runs with it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def now(self, back: float = 0) -> datetime:
        """Return the database's time so many seconds ago."""
        return START + timedelta(seconds=self.seconds - back)

    def task(self, age: float = 0, task_type: str = "email", priority: int = 0) -> Claimed:
        """Make a task that was due for ``age`` seconds and is claimed now."""
        at = self.now(age)
        return Claimed(1, task_type, None, priority, 1, None, at, at, self.now(), 1, None, None)


@pytest.fixture
def clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock()


@pytest.fixture
def low_water(clock: Clock) -> LowWater:
    """Return marks that nothing is known of."""
    return LowWater(clock)


def claim(low_water: LowWater, claimed: Sequence[Claimed], searched: float | None, *, full: bool = False) -> None:
    """Note a claim that took what it found, or, being full, left something."""
    lanes = low_water.lanes(["email"])
    low_water.looked(claimed, [] if full else ["email", "report"], searched, everywhere=not lanes)
    if low_water.to_survey:
        low_water.surveyed(["email", "report"], {})


def test_quick_claims_always_look_everywhere(low_water: LowWater, clock: Clock) -> None:
    """While the database finds due tasks at once, nothing is left out."""
    for _ in range(5):
        claim(low_water, [clock.task()], QUICK)
        assert low_water.lanes(["email"]) == {}
        assert low_water.everywhere_in() == 0


def test_after_a_slow_one_claims_begin_at_the_mark(low_water: LowWater, clock: Clock) -> None:
    """When all that was due is taken, the next claims search from now on, with a little slack."""
    claim(low_water, [clock.task()], SLOW)
    assert low_water.lanes(["email"]) == {EMAIL: clock.now(1)}
    clock.seconds += 0.1
    claim(low_water, [], None)
    assert low_water.lanes(["email"]) == {EMAIL: clock.now(1)}


def test_looking_everywhere_takes_a_small_share_of_the_time(low_water: LowWater, clock: Clock) -> None:
    """The slower it is, the rarer; but it happens every other second whatever it costs."""
    claim(low_water, [clock.task()], SLOW)
    assert low_water.everywhere_in() == pytest.approx(60 * SLOW)
    clock.seconds += 60 * SLOW
    assert low_water.lanes(["email"]) == {}
    claim(low_water, [clock.task()], 5.0)
    assert low_water.everywhere_in() == pytest.approx(2.0)


def test_when_looking_everywhere_is_quick_again_nothing_is_left_out(low_water: LowWater, clock: Clock) -> None:
    """Once the open transaction has ended, the next claim that looks everywhere ends the restriction."""
    claim(low_water, [clock.task()], SLOW)
    clock.seconds += 2
    claim(low_water, [clock.task()], QUICK)
    assert low_water.everywhere_in() == 0


def test_a_claim_that_finds_nothing_everywhere_restricts_nothing(low_water: LowWater, clock: Clock) -> None:
    """How long it searched is then not known, so the next one looks everywhere too."""
    claim(low_water, [clock.task()], SLOW)
    clock.seconds += 2
    claim(low_water, [], None)
    assert low_water.lanes(["email"]) == {}


def test_of_a_backlog_only_what_was_taken_lies_below_the_mark(low_water: LowWater, clock: Clock) -> None:
    """A claim that was full has left something: its lane begins where it ended."""
    claim(low_water, [clock.task(50), clock.task(40)], SLOW, full=True)
    assert low_water.lanes(["email"]) == {EMAIL: clock.now(41)}


def test_a_type_without_room_for_more_is_not_done(low_water: LowWater, clock: Clock) -> None:
    """Where the room of a type is used up, more of it may be due though the claim was not full."""
    low_water.looked([clock.task(50), clock.task(40, "report")], ["report"], SLOW, everywhere=True)
    low_water.surveyed(["email", "report"], {})
    assert low_water.lanes(["email", "report"]) == {EMAIL: clock.now(51), ("report", 0): clock.now(1)}


def test_a_type_that_was_not_asked_for_keeps_its_mark(low_water: LowWater, clock: Clock) -> None:
    """What a claim could not take may still be there, and it is not searched where it may not be taken."""
    claim(low_water, [clock.task(task_type="report")], SLOW)
    mark = clock.now(1)
    clock.seconds += 0.1
    low_water.looked([clock.task()], ["email"], SLOW, everywhere=False)
    assert low_water.lanes(["report"]) == {("report", 0): mark}


def test_a_mark_falls_to_what_a_look_everywhere_has_left(low_water: LowWater, clock: Clock) -> None:
    """Many tasks that come to stand below the mark are taken one claim after the other, not one at each look everywhere."""
    claim(low_water, [clock.task()], SLOW)
    clock.seconds += 2
    claim(low_water, [clock.task(500), clock.task(499)], SLOW, full=True)
    assert low_water.lanes(["email"]) == {EMAIL: clock.now(500)}
    claim(low_water, [clock.task(498)], None)
    assert low_water.lanes(["email"]) == {EMAIL: clock.now(1)}


def test_a_survey_finds_lanes_that_nothing_was_taken_of(low_water: LowWater, clock: Clock) -> None:
    """Priorities count in restricted claims too: what waits in a lane that this node has never served is searched."""
    low_water.looked([clock.task(50)], [], SLOW, everywhere=True)
    assert low_water.to_survey
    assert low_water.lanes(["email"]) == {}
    low_water.surveyed(["email", "report"], {EMAIL: clock.now(50), ("report", 3): clock.now(70)})
    assert low_water.lanes(["email", "report"]) == {EMAIL: clock.now(51), ("report", 3): clock.now(71)}


def test_a_survey_lowers_a_mark_and_leaves_that_of_an_empty_lane(low_water: LowWater, clock: Clock) -> None:
    """What it has found below a mark is searched; a lane that has run empty may have a task in a moment."""
    claim(low_water, [clock.task(), clock.task(priority=1)], SLOW)
    low_water.looked([], [], SLOW, everywhere=True)
    low_water.surveyed(["email"], {EMAIL: clock.now(30)})
    assert low_water.lanes(["email"]) == {EMAIL: clock.now(31), ("email", 1): clock.now(1)}


def test_types_that_were_not_surveyed_are_searched_everywhere(low_water: LowWater, clock: Clock) -> None:
    """A type that was full or unknown at the time of the survey may have lanes that nobody knows."""
    claim(low_water, [clock.task()], SLOW)
    assert low_water.lanes(["email", "new"]) == {}


def test_with_very_many_lanes_nothing_is_restricted(low_water: LowWater, clock: Clock) -> None:
    """Marks can not grow without end, and what is not remembered would not be found."""
    low_water.looked([clock.task()], [], SLOW, everywhere=True)
    low_water.surveyed(["email"], {("email", priority): clock.now() for priority in range(1001)})
    assert low_water.lanes(["email"]) == {}

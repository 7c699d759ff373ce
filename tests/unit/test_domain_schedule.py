"""When schedules run, and what becomes of times that were missed; the time is passed in."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from flask_taskengine import Backoff, Cron, Dynamic, FixedDelay, FixedRate, InvalidArgument
from flask_taskengine.domain.occurrence import Occurrence, occurrence_of
from flask_taskengine.domain.schedule import Misfire, Plan, Timing, name_fault, plan, replan
from flask_taskengine.engine.definition import Definition, digest, read_definition
from flask_taskengine.engine.schedule_context import moment_or_wait

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return the moment so many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


HOURLY = Cron("0 * * * *")
HOUR = 3600.0


# --- the kinds ----------------------------------------------------------------------------------------------------------


def test_a_rate_stays_on_its_grid() -> None:
    """However late a look is, the times are whole periods from the first; no rounding moves them."""
    rate = FixedRate("300ms")
    moment = NOON
    for place in range(1, 100_001):
        following = rate.after(moment)
        assert following is not None
        moment = following
        if place in (1, 3, 100_000):
            assert moment == NOON + timedelta(milliseconds=300) * place
    assert rate.due(NOON, at(1.0), 10) == [at(0), at(0.3), at(0.6), at(0.9)]
    assert rate.due(NOON, at(1.0), 2) == [at(0.6), at(0.9)]
    assert rate.due(NOON, at(0.9), 1) == [at(0.9)]


@pytest.mark.parametrize("timing", [FixedDelay("10m"), Dynamic("10m")])
def test_what_follows_from_the_end_of_the_run_has_no_grid(timing: Timing) -> None:
    """The time after an end is one delay later; nothing can be missed but the one time."""
    assert timing.after(at(5)) == at(605)
    assert timing.due(NOON, at(86400), 100) == [NOON]
    assert not timing.planned


@pytest.mark.parametrize("wait", ["0s", -1, "0.4ms", "soon", None, True, float("nan"), "200000d"])
@pytest.mark.parametrize("kind", [FixedRate, FixedDelay, Dynamic])
def test_a_duration_is_a_millisecond_or_more(kind: type, wait: object) -> None:
    """Anything else is refused where it is written."""
    with pytest.raises(InvalidArgument, match=kind.__name__):
        kind(wait)


def test_durations_are_kept_to_the_millisecond() -> None:
    """A third of a second is 333 milliseconds, on every database."""
    assert FixedRate(1 / 3).period == 0.333
    assert FixedRate("1500ms") == FixedRate(1.5) == FixedRate(timedelta(seconds=1.5))


def test_next_run_must_be_a_function() -> None:
    """A Dynamic takes something to call, or nothing."""
    with pytest.raises(InvalidArgument, match="next_run"):
        Dynamic("1m", next_run="hourly")  # type: ignore[arg-type]


# --- missed times -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
@pytest.mark.parametrize("late", [0, 0.5, 59, 60])
def test_an_occurrence_within_its_grace_runs_as_planned(policy: str, late: float) -> None:
    """A minute late is in time for an hourly schedule, whatever the policy."""
    assert plan(HOURLY, Misfire(policy), NOON, at(late)) == Plan(NOON, at(HOUR))


def test_a_dense_schedule_has_a_shorter_grace() -> None:
    """By default half of the time to the next occurrence, so that what runs every two seconds does not pile up for a minute."""
    assert plan(FixedRate(2), Misfire("once"), NOON, at(0.9)).run == NOON
    assert plan(FixedRate(2), Misfire("once"), NOON, at(7)).run == at(6)


def test_skip_leaves_missed_occurrences_out() -> None:
    """It goes on with the next time; one that is not late yet is run."""
    misfire = Misfire("skip")
    assert plan(HOURLY, misfire, NOON, at(5 * HOUR + 1800)) == Plan(None, at(6 * HOUR), (NOON, at(5 * HOUR + 1800)))
    assert plan(HOURLY, misfire, NOON, at(5 * HOUR + 30)) == Plan(at(5 * HOUR), at(6 * HOUR), (NOON, at(5 * HOUR)))
    assert plan(FixedDelay("10m"), misfire, NOON, at(HOUR)) == Plan(None, at(HOUR + 600), (NOON, at(HOUR)))


def test_once_makes_up_for_all_with_one_run() -> None:
    """It has the time of the last one, and the next is the regular one."""
    misfire = Misfire("once")
    assert plan(HOURLY, misfire, NOON, at(5 * HOUR + 1800)) == Plan(at(5 * HOUR), at(6 * HOUR), (NOON, at(5 * HOUR)))
    assert plan(HOURLY, misfire, NOON, at(1800)) == Plan(NOON, at(HOUR))
    assert plan(FixedRate(2), misfire, NOON, at(9)) == Plan(at(8), at(10), (NOON, at(8)))
    assert plan(FixedDelay("10m"), misfire, NOON, at(HOUR)) == Plan(NOON, None)


def test_all_makes_up_for_each_of_the_last() -> None:
    """One after the other, oldest first; those beyond the limit are given up."""
    assert plan(HOURLY, Misfire("all"), NOON, at(5 * HOUR + 1800)) == Plan(NOON, at(HOUR))
    assert plan(HOURLY, Misfire("all", most=2), NOON, at(5 * HOUR + 1800)) == Plan(at(4 * HOUR), at(5 * HOUR), (NOON, at(4 * HOUR)))


def test_a_grace_of_its_own() -> None:
    """What is given holds, however dense the schedule is."""
    assert plan(FixedRate(2), Misfire("skip", "5s"), NOON, at(5)).run == NOON
    assert plan(HOURLY, Misfire("skip", "5s"), NOON, at(5.001)).run is None


def test_a_month_of_missed_seconds_is_no_work() -> None:
    """The last of 2.6 million missed occurrences is found without a walk over them."""
    made = plan(Cron("* * * * * *"), Misfire("all", most=10), NOON, NOON + timedelta(days=30, milliseconds=900))
    assert made.run == NOON + timedelta(days=30, seconds=-9)


@pytest.mark.parametrize(("policy", "grace", "most"), [("sometimes", None, 1), ("skip", "-1s", 1), ("all", None, 0), ("skip", "x", 1)])
def test_a_wrong_policy_is_refused(policy: str, grace: str | None, most: int) -> None:
    """The error says what may be given."""
    with pytest.raises(InvalidArgument, match="misfire"):
        Misfire(policy, grace, most)


@pytest.mark.parametrize("timing", [Cron("*/7 1-5 * * *", "Europe/Berlin"), Cron("30 2 * * *", "America/New_York"), FixedRate("47m")])
def test_a_year_of_looks_runs_each_occurrence_once(timing: Timing) -> None:
    """Looked at a little late each time, for a year: every occurrence is run exactly once, in order, and none too early."""
    rng = random.Random(str(timing))
    due_at, end = timing.after(NOON), NOON + timedelta(days=365)
    expected = timing.after(NOON)
    while due_at is not None and due_at < end:
        made = plan(timing, Misfire("skip"), due_at, due_at + timedelta(milliseconds=rng.randrange(0, 20_000)))
        assert made.run == expected
        assert made.missed is None
        expected = timing.after(made.run) if made.run is not None else None
        due_at = made.next_at
        assert due_at == expected


# --- a changed timing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timing", "began", "ended", "expected"),
    [
        (Cron("0 * * * *"), at(-600), at(-500), at(HOUR)),
        (FixedRate("1h"), at(-600), at(-500), at(3000)),
        (FixedRate("5m"), at(-600), at(-500), at(0)),
        (FixedRate("5m"), None, None, at(300)),
        (FixedDelay("10m"), at(-600), at(-500), at(100)),
        (FixedDelay("5m"), at(-600), at(-500), at(0)),
        (Dynamic("5m"), at(-600), at(-500), at(300)),
    ],
)
def test_a_new_timing_counts_from_the_last_run(timing: Timing, began: datetime | None, ended: datetime | None, expected: datetime) -> None:
    """What it would already have done by now is due now."""
    assert replan(timing, NOON, began=began, ended=ended) == expected


# --- names, keys and forms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nightly", "customer:42:report", "a" * 200, "Bericht für Köln", "x:now", "2026-11-30T03:00:00Z"])
@pytest.mark.parametrize("moment", [NOON, at(0.5), NOON.astimezone(tz=None)])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_key_can_be_read_back(name: str, moment: datetime, by_hand: bool) -> None:
    """Name, time and whether it was asked for; no two occurrences have the same key."""
    occurrence = Occurrence(name, moment, by_hand=by_hand)
    assert occurrence_of(occurrence.key) == occurrence
    assert len(occurrence.key) <= 255


def test_the_form_of_a_key() -> None:
    """It says in UTC what everybody can read."""
    assert Occurrence("nightly", NOON).key == "schedule:nightly:2026-11-30T12:00:00Z"
    assert Occurrence("nightly", at(0.25), by_hand=True).key == "schedule:nightly:2026-11-30T12:00:00.250000Z:now"


@pytest.mark.parametrize("key", [None, "", "order-7", "schedule:", "schedule:x", "schedule:x:soon", "schedule:x:2026-13-01T00:00:00Z"])
def test_other_keys_are_no_occurrences(key: str | None) -> None:
    """A task with a key of its own is a task like any other."""
    assert occurrence_of(key) is None


@pytest.mark.parametrize("name", ["", " x", "x\n", "a" * 201, None, 3, "\0"])
def test_names_are_printable(name: object) -> None:
    """A name is part of keys and log lines."""
    assert name_fault(name) is not None


@pytest.mark.parametrize("timing", [Cron("0 3 * * *", "Europe/Berlin"), FixedRate("1h"), FixedDelay("333ms"), Dynamic("2d")])
def test_what_is_stored_can_be_read_back(timing: Timing) -> None:
    """The form is plain JSON, and the same whatever the order of its keys."""
    definition = Definition(timing, Backoff.geometric("1.5s", None, "1h"), Misfire("all", "2s", 7), 3)
    form = definition.form()
    assert read_definition(form) == definition
    assert digest(dict(reversed(form.items()))) == digest(form)


@pytest.mark.parametrize("form", [{}, {"timing": {"kind": "moon"}}, Definition(FixedRate(1)).form() | {"timing": {"kind": "moon"}}])
def test_what_a_newer_version_has_stored_is_one_clear_error(form: dict[str, object]) -> None:
    """It names the likely reason."""
    with pytest.raises(InvalidArgument, match="newer version"):
        read_definition(form)


def test_a_next_time_is_a_moment_or_a_wait() -> None:
    """A moment needs a zone."""
    assert moment_or_wait("5m") == 300
    assert moment_or_wait(NOON) == NOON
    for wrong in (NOON.replace(tzinfo=None), "soon", -1, True):
        with pytest.raises(InvalidArgument):
            moment_or_wait(wrong)

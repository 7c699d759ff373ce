"""Cron expressions: what is accepted, and when they come true, also where clocks are changed."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from flask_taskengine import Cron, InvalidArgument

MINUTE = timedelta(minutes=1)


def times(cron: Cron, start: datetime | str, count: int) -> list[str]:
    """Return the next times as the clocks of the zone show them, as they do the start where that is a text."""
    if isinstance(start, str):
        start = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(cron.timezone))
    found = islice(occurrences(cron, start), count)
    return [moment.astimezone(ZoneInfo(cron.timezone)).strftime("%a %d.%m. %H:%M:%S%z") for moment in found]


def occurrences(cron: Cron, start: datetime) -> Iterator[datetime]:
    """Yield the times after a moment."""
    moment = cron.after(start)
    while moment is not None:
        yield moment
        moment = cron.after(moment)


# --- what is accepted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", ["Thu 01.01. 03:00:00+0000", "Fri 02.01. 03:00:00+0000"]),
        ("*/10 * * * * *", ["Thu 01.01. 00:00:10+0000", "Thu 01.01. 00:00:20+0000"]),
        ("30 0 12 * * *", ["Thu 01.01. 12:00:30+0000", "Fri 02.01. 12:00:30+0000"]),
        ("0 9 * * mon-fri", ["Thu 01.01. 09:00:00+0000", "Fri 02.01. 09:00:00+0000", "Mon 05.01. 09:00:00+0000"]),
        ("0 0 1 jan,jul ?", ["Wed 01.07. 00:00:00+0000", "Fri 01.01. 00:00:00+0000"]),
        ("0 0 L * *", ["Sat 31.01. 00:00:00+0000", "Sat 28.02. 00:00:00+0000"]),
        ("0 0 * * fri#2", ["Fri 09.01. 00:00:00+0000", "Fri 13.02. 00:00:00+0000"]),
        ("0 0 29 2 *", ["Tue 29.02. 00:00:00+0000"]),
        ("@hourly", ["Thu 01.01. 01:00:00+0000"]),
        ("@Daily", ["Fri 02.01. 00:00:00+0000"]),
        ("@midnight", ["Fri 02.01. 00:00:00+0000"]),
        ("@weekly", ["Sun 04.01. 00:00:00+0000"]),
        ("@monthly", ["Sun 01.02. 00:00:00+0000"]),
        ("@yearly", ["Fri 01.01. 00:00:00+0000"]),
        ("  0   3 * *  * ", ["Thu 01.01. 03:00:00+0000"]),
    ],
)
def test_expressions(expression: str, expected: list[str]) -> None:
    """Five or six fields, names, lists, ranges, steps, last and nth days, and the forms with an at sign."""
    assert times(Cron(expression), datetime(2026, 1, 1, tzinfo=UTC), len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("", "0 fields"),
        ("* * *", "3 fields"),
        ("* * * * * * *", "7 fields"),
        ("61 * * * *", "Bad minute"),
        ("5-1 * * * *", "Bad minute"),
        ("*/0 * * * *", "Bad minute"),
        ("0 0 31 2 *", "Bad day-of-month"),
        ("0 0 30 feb ?", "Bad day-of-month"),
        ("x y z a b", "Bad"),
        ("@fortnightly", "not known"),
        ("@reboot", "no time"),
        ("@every 5m", "FixedRate"),
        ("1," * 200 + "1 * * * *", "at most 250"),
        ("0/1/1/1/1/1/1/1 * * * *", "can not be read"),
        (None, "is no text"),
        (b"0 3 * * *", "is no text"),
    ],
)
def test_what_can_not_be_read_or_never_comes_is_refused_at_once(expression: str, told: str) -> None:
    """A wrong expression is an error when it is written, and never later."""
    with pytest.raises(InvalidArgument, match=told):
        Cron(expression)


@pytest.mark.parametrize(
    ("zone", "told"),
    [("Europe/Berln", "did you mean 'Europe/Berlin'"), ("Mars", "unknown"), ("../etc/passwd", "unknown"), (3, "unknown"), ("", "unknown")],
)
def test_an_unknown_time_zone_is_refused_at_once(zone: str, told: str) -> None:
    """The error names the zone that was meant."""
    with pytest.raises(InvalidArgument, match=told):
        Cron("0 3 * * *", timezone=zone)


def test_a_zone_may_be_given_as_an_object() -> None:
    """Its name is kept, and two equal schedules are equal."""
    assert Cron("0 3 * * *", timezone=ZoneInfo("Europe/Berlin")) == Cron("0  3 * * *", timezone="Europe/Berlin")


def test_the_end_of_the_calendar_is_no_error() -> None:
    """After the last time there is none."""
    assert Cron("0 0 1 1 *").after(datetime(9999, 6, 1, tzinfo=UTC)) is None


def test_the_time_zone_of_the_process_plays_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment in any zone gives the same next time, in UTC."""
    cron = Cron("0 3 * * *", timezone="America/New_York")
    moment = datetime(2026, 5, 1, tzinfo=UTC)
    assert cron.after(moment) == cron.after(moment.astimezone(ZoneInfo("Asia/Tokyo"))) == datetime(2026, 5, 1, 7, tzinfo=UTC)


# --- where clocks are changed: the table of docs/schedules.md ---------------------------------------------------------------

BERLIN_GAP, BERLIN_OVERLAP = "2026-03-29 00:59", "2026-10-25 00:59"
NEW_YORK_GAP, NEW_YORK_OVERLAP = "2026-03-08 00:59", "2026-11-01 00:29"


@pytest.mark.parametrize(
    ("expression", "zone", "start", "expected"),
    [
        # In Berlin clocks go from 02:00 to 03:00 on 29 March, and from 03:00 back to 02:00 on 25 October.
        ("30 2 * * *", "Europe/Berlin", BERLIN_GAP, ["Sun 29.03. 03:00:00+0200", "Mon 30.03. 02:30:00+0200"]),
        ("0 2 * * *", "Europe/Berlin", BERLIN_GAP, ["Sun 29.03. 03:00:00+0200", "Mon 30.03. 02:00:00+0200"]),
        ("0 3 * * *", "Europe/Berlin", BERLIN_GAP, ["Sun 29.03. 03:00:00+0200", "Mon 30.03. 03:00:00+0200"]),
        ("15,45 2 * * *", "Europe/Berlin", BERLIN_GAP, ["Sun 29.03. 03:00:00+0200", "Mon 30.03. 02:15:00+0200"]),
        ("0 30 2 * * *", "Europe/Berlin", BERLIN_GAP, ["Sun 29.03. 03:00:00+0200", "Mon 30.03. 02:30:00+0200"]),
        ("*/20 2 * * *", "Europe/Berlin", BERLIN_GAP, ["Mon 30.03. 02:00:00+0200"]),
        ("30 */2 * * *", "Europe/Berlin", BERLIN_GAP, ["Sun 29.03. 04:30:00+0200", "Sun 29.03. 06:30:00+0200"]),
        ("*/30 * * * *", "Europe/Berlin", BERLIN_GAP, ["Sun 29.03. 01:00:00+0100", "Sun 29.03. 01:30:00+0100", "Sun 29.03. 03:00:00+0200"]),
        ("0 * * * *", "Europe/Berlin", BERLIN_GAP, ["Sun 29.03. 01:00:00+0100", "Sun 29.03. 03:00:00+0200"]),
        ("30 2 * * *", "Europe/Berlin", BERLIN_OVERLAP, ["Sun 25.10. 02:30:00+0200", "Mon 26.10. 02:30:00+0100"]),
        (
            "15,45 2 * * *",
            "Europe/Berlin",
            BERLIN_OVERLAP,
            ["Sun 25.10. 02:15:00+0200", "Sun 25.10. 02:45:00+0200", "Mon 26.10. 02:15:00+0100"],
        ),
        ("0 30 2 * * *", "Europe/Berlin", BERLIN_OVERLAP, ["Sun 25.10. 02:30:00+0200", "Mon 26.10. 02:30:00+0100"]),
        (
            "*/30 2 * * *",
            "Europe/Berlin",
            BERLIN_OVERLAP,
            ["Sun 25.10. 02:00:00+0200", "Sun 25.10. 02:30:00+0200", "Sun 25.10. 02:00:00+0100", "Sun 25.10. 02:30:00+0100"],
        ),
        (
            "0 * * * *",
            "Europe/Berlin",
            BERLIN_OVERLAP,
            ["Sun 25.10. 01:00:00+0200", "Sun 25.10. 02:00:00+0200", "Sun 25.10. 02:00:00+0100", "Sun 25.10. 03:00:00+0100"],
        ),
        # In New York clocks go from 02:00 to 03:00 on 8 March, and from 02:00 back to 01:00 on 1 November.
        ("30 2 * * *", "America/New_York", NEW_YORK_GAP, ["Sun 08.03. 03:00:00-0400", "Mon 09.03. 02:30:00-0400"]),
        (
            "*/30 * * * *",
            "America/New_York",
            NEW_YORK_GAP,
            ["Sun 08.03. 01:00:00-0500", "Sun 08.03. 01:30:00-0500", "Sun 08.03. 03:00:00-0400"],
        ),
        ("30 1 * * *", "America/New_York", NEW_YORK_OVERLAP, ["Sun 01.11. 01:30:00-0400", "Mon 02.11. 01:30:00-0500"]),
        (
            "*/30 * * * *",
            "America/New_York",
            NEW_YORK_OVERLAP,
            ["Sun 01.11. 00:30:00-0400", "Sun 01.11. 01:00:00-0400", "Sun 01.11. 01:30:00-0400", "Sun 01.11. 01:00:00-0500"],
        ),
        # Clocks that go by half an hour, and those that go at midnight.
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-05 01:00", ["Sun 05.04. 01:45:00+1100", "Mon 06.04. 01:45:00+1030"]),
        ("*/15 2 * * *", "Australia/Lord_Howe", "2026-10-04 00:00", ["Sun 04.10. 02:30:00+1100", "Sun 04.10. 02:45:00+1100"]),
        ("0 0 * * *", "Africa/Cairo", "2026-04-23 12:00", ["Fri 24.04. 01:00:00+0300", "Sat 25.04. 00:00:00+0300"]),
    ],
)
def test_r19_days_on_which_clocks_are_changed(expression: str, zone: str, start: str, expected: list[str]) -> None:
    """A time that is named runs once, at the end of a gap or the first time of two; anything else follows the clock."""
    assert times(Cron(expression, zone), start, len(expected)) == expected


def test_a_start_in_the_repeated_hour_never_goes_back() -> None:
    """After the second 02:10 the next 02:30 is that of tomorrow, whose first one of today has been."""
    second_time = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    assert times(Cron("30 2 * * *", "Europe/Berlin"), second_time, 1) == ["Mon 26.10. 02:30:00+0100"]
    assert times(Cron("*/30 2 * * *", "Europe/Berlin"), second_time, 1) == ["Sun 25.10. 02:30:00+0100"]


# --- a year, minute by minute -----------------------------------------------------------------------------------------------

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]
EXPRESSIONS = [
    "30 2 * * *",
    "0 3 * * *",
    "15,45 2 * * *",
    "*/30 * * * *",
    "30 */2 * * *",
    "*/20 2 * * *",
    "0 0 13 * 5",
    "0 12 */2 * 1",
    "10-50/20 1-3 * 3,4,10,11 0",
    "*/7 1 * * 5-7",
    "59 23 31 12 *",
]
YEAR = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


@cache
def clock_of(zone: str) -> list[tuple[datetime, datetime]]:
    """Return every minute of the year, in UTC and as the clocks of the zone show it."""
    place = ZoneInfo(zone)
    start, end = YEAR
    minutes = (start + MINUTE * place for place in range(int((end - start) / MINUTE)))
    return [(minute, minute.astimezone(place).replace(tzinfo=None)) for minute in minutes]


def allowed(text: str, least: int, most: int) -> set[int]:
    """Return the numbers that a field names, by the plainest reading."""
    named: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        low = least if first == "*" else int(first)
        high = most if first == "*" or (step and not last) else int(last or first)
        named |= set(range(low, high + 1, int(step or 1)))
    return named


@cache
def oracle(expression: str, zone: str) -> list[datetime]:
    """Return the minutes of the year that an expression names, by looking at each of them."""
    minute, hour, day, month, weekday = expression.split()
    minutes, hours, days, months = allowed(minute, 0, 59), allowed(hour, 0, 23), allowed(day, 1, 31), allowed(month, 1, 12)
    weekdays = {number % 7 for number in allowed(weekday, 0, 7)}

    def named(wall: datetime) -> bool:
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        of_month, of_week = wall.day in days, wall.isoweekday() % 7 in weekdays
        return (of_month and of_week) if "*" in (day[0], weekday[0]) else (of_month or of_week)

    if "*" in (minute[0], hour[0]):
        return [moment for moment, wall in clock_of(zone) if named(wall)]
    found: list[datetime] = []
    shown = clock_of(zone)[0][1] - MINUTE
    for moment, wall in clock_of(zone):
        # Each time that the clocks show for the first time, with those that they have just left out.
        skipped = wall - shown > MINUTE
        if (skipped and any(named(shown + MINUTE * place) for place in range(1, int((wall - shown) / MINUTE)))) or (
            wall > shown and named(wall)
        ):
            found.append(moment)
        shown = max(shown, wall)
    return found


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_r19_a_year_agrees_with_looking_at_every_minute(expression: str, zone: str) -> None:
    """Every occurrence of a year is found, once and in order, and nothing else; so from any moment at which one may begin."""
    cron = Cron(expression, zone)
    expected = oracle(expression, zone)
    start, end = YEAR
    assert [moment for moment in _until(cron, start - MINUTE, end)] == expected
    random.seed(expression + zone)
    for _ in range(300):
        moment = start + random.random() * (end - start - timedelta(days=10))
        place = bisect_right(expected, moment)
        if place < len(expected):
            assert cron.after(moment) == expected[place], moment


@pytest.mark.parametrize("zone", ZONES)
def test_what_was_missed_is_found_from_its_end(zone: str) -> None:
    """The last occurrences of a span are those that a walk from its start finds, however many there were."""
    for expression in EXPRESSIONS:
        cron = Cron(expression, zone)
        expected = oracle(expression, zone)
        for place, most in ((0, 1), (0, 7), (3, 100), (len(expected) // 2, 3)):
            if place < len(expected):
                assert cron.due(expected[place], YEAR[1] - MINUTE, most) == expected[place:][-most:], (expression, place, most)


def _until(cron: Cron, start: datetime, end: datetime) -> Iterator[datetime]:
    for moment in occurrences(cron, start):
        if moment >= end:
            return
        yield moment


def test_every_second_of_a_day_with_a_repeated_hour() -> None:
    """Seconds run through, also where the clocks are set back."""
    cron = Cron("* * * * * *", "Europe/Berlin")
    start = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert list(islice(occurrences(cron, start), 4000)) == [start + timedelta(seconds=place) for place in range(1, 4001)]


def test_a_fraction_of_a_second_is_no_reason_to_fire_twice() -> None:
    """A microsecond before a time the next is that time, from that time on it is the one after."""
    cron, tick = Cron("* * * * * *"), datetime(2026, 1, 1, 12, tzinfo=UTC)
    microsecond = timedelta(microseconds=1)
    assert [cron.after(moment) for moment in (tick - microsecond, tick, tick + microsecond)] == [tick, *[tick + timedelta(seconds=1)] * 2]

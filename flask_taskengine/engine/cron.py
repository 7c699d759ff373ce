"""Cron expressions in a time zone, and what they mean on the days on which clocks are changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import ClassVar
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim

from ..domain.errors import InvalidArgument

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LONGEST = 250
_SECOND = timedelta(seconds=1)
_FIRST_WINDOW = timedelta(minutes=1)
_FIELDS = "give 'minute hour day-of-month month day-of-week', with a field for seconds before them if need be, or one of "


@dataclass(frozen=True, slots=True, init=False)
class Cron:
    """At the times of a cron expression, on the clocks of a time zone: ``Cron("0 3 * * *", timezone="Europe/Berlin")``.

    Five fields (minute, hour, day of month, month, day of week), or six with seconds first; names (``MON``, ``JAN``), lists,
    ranges, steps, ``L`` and ``#``; ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``. If both days are given, either
    will do, unless one of the two begins with ``*``.

    On the days on which clocks are changed, as Debian's cron does it:

    - An expression whose minute and hour both do not begin with ``*`` runs once per time it names: at the end of the gap
      where the clocks skip that time, and the first time where they show it twice.
    - Any other follows the clock: not in a gap, and again in the hour that is repeated.

    Args:
        expression: is checked at once.
        timezone: an IANA name such as ``"Europe/Berlin"``; UTC by default, never that of the process.

    Raises:
        InvalidArgument: the expression can not be read or never comes true, or the time zone is unknown.
    """

    planned: ClassVar[bool] = True
    expression: str
    timezone: str
    _fields: str = field(repr=False, compare=False)
    _zone: tzinfo = field(repr=False, compare=False)
    _names_times: bool = field(repr=False, compare=False)

    def __init__(self, expression: str, timezone: str | ZoneInfo = "UTC") -> None:
        fields = _checked(expression)
        zone = _zone(timezone)
        minute, hour = fields.split()[-5:-3]
        object.__setattr__(self, "expression", " ".join(expression.split()))
        object.__setattr__(self, "timezone", zone.key)
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "_zone", zone)
        object.__setattr__(self, "_names_times", not minute.startswith("*") and not hour.startswith("*"))

    def __str__(self) -> str:
        return f"{self.expression} ({self.timezone})"

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time after ``moment``, in UTC; ``None`` where there is none for fifty years."""
        try:
            return self._named_after(moment) if self._names_times else self._shown_after(moment)
        except OverflowError:  # the end of the calendar
            return None

    def due(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        """Return, oldest first, the last ``most`` times from ``since``, which is one, to ``now``; looks no further back than it must."""
        window = _FIRST_WINDOW
        while True:
            start = max(since, now - window)
            times = list(self._between(start, now))
            if start == since:
                return [since, *times][-most:]
            if len(times) >= most:
                return times[-most:]
            window *= 4

    def _between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        moment = self.after(start)
        while moment is not None and moment <= end:
            yield moment
            moment = self.after(moment)

    # --- on the clocks of the zone --------------------------------------------------------------------------------------

    def _named_after(self, moment: datetime) -> datetime | None:
        """Once per time that the clocks skip or repeat. The first of two equal times never comes after a later time."""
        wall = moment.astimezone(self._zone).replace(tzinfo=None)
        for shown in _walls(self._fields, wall):
            instant = self._first_instant(shown)
            if instant > moment:
                return instant
        return None

    def _shown_after(self, moment: datetime) -> datetime | None:
        """Whenever the clocks show it."""
        wall = moment.astimezone(self._zone).replace(tzinfo=None)
        found = self._first_ahead(moment, wall)
        repeated = self._repeated_from(moment)
        # Times that the clocks show already, and soon again.
        again = None if repeated is None else self._first_ahead(moment, repeated - _SECOND)
        return min((instant for instant in (found, again) if instant is not None), default=None)

    def _first_ahead(self, moment: datetime, wall: datetime) -> datetime | None:
        """Return the first of the instants after ``moment`` at which the clocks show a time of the expression after ``wall``."""
        shown = _walls(self._fields, wall)
        return next((instant for time in shown for instant in self._instants(time) if instant > moment), None)

    def _instants(self, wall: datetime) -> list[datetime]:
        """Return the moments at which the clocks show this: none in a gap, two in a repeated hour."""
        both = {wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
        return sorted(instant for instant in both if instant.astimezone(self._zone).replace(tzinfo=None) == wall)

    def _first_instant(self, wall: datetime) -> datetime:
        """Return the first moment at which the clocks show this, or the end of the gap in which they skip it."""
        instants = self._instants(wall)
        if instants:
            return instants[0]
        # Read with the offsets of before and of after the change, a skipped time lies behind the change and before it.
        late, early = (wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        return self._change_between(early, late)

    def _repeated_from(self, moment: datetime) -> datetime | None:
        """Return the first of the times that the clocks will soon show again, if what they show now is among them."""
        tomorrow = moment + timedelta(days=1)
        set_back = self._offset(moment) - self._offset(tomorrow)
        if set_back <= timedelta(0):
            return None
        change = self._change_between(moment, tomorrow)
        return change.astimezone(self._zone).replace(tzinfo=None) if change - moment <= set_back else None

    def _change_between(self, early: datetime, late: datetime) -> datetime:
        """Return the second at which the clocks are changed."""
        early, late = early.replace(microsecond=0), late.replace(microsecond=0)
        after = self._offset(late)
        while late - early > _SECOND:
            middle = (early + (late - early) / 2).replace(microsecond=0)
            if self._offset(middle) == after:
                late = middle
            else:
                early = middle
        return late

    def _offset(self, moment: datetime) -> timedelta:
        offset = moment.astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset


def _walls(fields: str, after: datetime) -> Iterator[datetime]:
    """Yield the times of the expression as if clocks were never changed."""
    yield from CronSim(fields, after)


def _checked(expression: object) -> str:
    """Return the expression's fields as cronsim reads them."""
    if not isinstance(expression, str) or len(expression) > _LONGEST:
        raise InvalidArgument(
            f"the cron expression {expression!r:.60} is no text of at most {_LONGEST} characters: {_FIELDS}{', '.join(ALIASES)}"
        )
    given = expression.strip()
    fields = ALIASES.get(given.lower(), given)
    if fields.startswith("@"):
        raise InvalidArgument(f"the cron expression {given!r} is not known: {_FIELDS}{', '.join(ALIASES)}{_instead_of(given.lower())}")
    parts = ["*" if part == "?" else part for part in fields.split()]
    if len(parts) not in (5, 6):
        raise InvalidArgument(f"the cron expression {given!r} has {len(parts)} fields: {_FIELDS}{', '.join(ALIASES)}")
    fields = " ".join(parts)
    try:
        # From a fixed date, so that what is accepted today is accepted tomorrow.
        next(CronSim(fields, datetime(2000, 1, 1)))  # noqa: DTZ001 - a time on no clock in particular
    except StopIteration:
        raise InvalidArgument(f"the cron expression {given!r} never comes true: no such day exists") from None
    except Exception as error:  # noqa: BLE001 - whatever a hostile expression makes the parser do, it is one
        reason = str(error) or type(error).__name__
        raise InvalidArgument(f"the cron expression {given!r} can not be read ({reason}): {_FIELDS}{', '.join(ALIASES)}") from None
    return fields


def _instead_of(alias: str) -> str:
    if alias.startswith("@every"):
        return "; FixedRate runs every so often"
    if alias == "@reboot":
        return "; a worker's start is no time"
    return ""


def _zone(timezone: object) -> ZoneInfo:
    if isinstance(timezone, ZoneInfo) and timezone.key:
        return timezone
    try:
        return ZoneInfo(timezone)  # type: ignore[arg-type]
    except (ValueError, TypeError, OSError, KeyError):
        close = difflib.get_close_matches(str(timezone), available_timezones(), 1)
        hint = f"did you mean {close[0]!r}?" if close else "give an IANA name such as 'Europe/Berlin'; the package tzdata has all of them"
        raise InvalidArgument(f"the time zone {timezone!r:.60} is unknown: {hint}") from None

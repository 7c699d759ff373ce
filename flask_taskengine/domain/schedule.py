"""When a schedule runs: the kinds of times, and what becomes of those that were missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from .backoff import Duration, milliseconds
from .durations import spoken
from .errors import InvalidArgument
from .values import whole

LONGEST_GRACE = 60.0
"""Seconds that an occurrence may be late by default, where the schedule is not so dense that half of its interval is less."""
LONGEST_NAME = 200
"""Characters; the name is part of the occurrences' idempotency keys."""
MOST_CAUGHT_UP = 100


class Timing(Protocol):
    """Says when a schedule runs. All moments are aware datetimes in UTC."""

    planned: ClassVar[bool]
    """Whether the time after an occurrence is known when that begins; else it follows from its end."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the time that follows ``moment``, and lies after it; ``None`` where there is none any more."""

    def due(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        """Return, oldest first, the last ``most`` occurrences from ``since``, which is one, to ``now``."""


@dataclass(frozen=True, slots=True, init=False)
class FixedRate:
    """Every so often, counted from start to start: ``FixedRate("1h")``. The first time is one period after it was planned.

    The times stay on their grid, however late or long a run is.

    Raises:
        InvalidArgument: the period is no duration of a millisecond or more.
    """

    planned: ClassVar[bool] = True
    period: float
    """Seconds, to the millisecond."""

    def __init__(self, period: Duration) -> None:
        object.__setattr__(self, "period", _duration("FixedRate", period))

    def after(self, moment: datetime) -> datetime | None:
        """Return the moment one period later."""
        return later(moment, self.period)

    def due(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        """Return, oldest first, the last ``most`` points of the grid from ``since`` to ``now``."""
        period = timedelta(seconds=self.period)
        last = (now - since) // period
        return [since + period * place for place in range(max(0, last - most + 1), last + 1)]

    def __str__(self) -> str:
        return f"every {spoken(self.period)}"


@dataclass(frozen=True, slots=True, init=False)
class FixedDelay:
    """So long after the end of the run before, by the database's clock: ``FixedDelay("10m")``.

    Raises:
        InvalidArgument: the delay is no duration of a millisecond or more.
    """

    planned: ClassVar[bool] = False
    delay: float
    """Seconds, to the millisecond."""

    def __init__(self, delay: Duration) -> None:
        object.__setattr__(self, "delay", _duration("FixedDelay", delay))

    def after(self, moment: datetime) -> datetime | None:
        """Return the next time, given the end of a run."""
        return later(moment, self.delay)

    def due(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        """Return ``since`` alone: the times after it depend on the run."""
        return [since]

    def __str__(self) -> str:
        return f"{spoken(self.delay)} after the end"


@dataclass(frozen=True, slots=True, init=False)
class Dynamic:
    """When the handler says: it returns, or gives to ``context.schedule.run_next``, a datetime or a duration.

    Args:
        default: the wait before the first run, and after every run that says nothing.
        next_run: called with the context after every run, whether it succeeded or failed (``context.schedule.error``);
            returns a datetime, a duration, or None for the default.

    Raises:
        InvalidArgument: the default is no duration of a millisecond or more.
    """

    planned: ClassVar[bool] = False
    default: float
    """Seconds, to the millisecond."""
    next_run: Callable[[Any], datetime | Duration | None] | None

    def __init__(self, default: Duration, next_run: Callable[[Any], datetime | Duration | None] | None = None) -> None:
        object.__setattr__(self, "default", _duration("Dynamic", default))
        if next_run is not None and not callable(next_run):
            raise InvalidArgument(f"Dynamic: next_run is {next_run!r}: give a function that takes the context, or None")
        object.__setattr__(self, "next_run", next_run)

    def after(self, moment: datetime) -> datetime | None:
        """Return the time that holds where nothing else is said, given the end of a run."""
        return later(moment, self.default)

    def due(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        """Return ``since`` alone: the times after it depend on the run."""
        return [since]

    def __str__(self) -> str:
        return f"when the handler says, else {spoken(self.default)} after the end"


class MisfirePolicy(StrEnum):
    """What becomes of occurrences that could not begin in time."""

    SKIP = "skip"
    """They are left out."""
    ONCE = "once"
    """They are made up for by one run, which has the time of the last of them."""
    ALL = "all"
    """They are run one after the other, oldest first; of very many the last."""


@dataclass(frozen=True, slots=True, init=False)
class Misfire:
    """What a schedule does about missed occurrences.

    Args:
        policy: ``"skip"``, ``"once"`` or ``"all"``.
        grace: an occurrence that is late by no more than this is not missed; by default a minute, at most half of
            the time to the next occurrence.
        most: how many ``"all"`` makes up for.

    Raises:
        InvalidArgument: an argument is out of its range.
    """

    policy: MisfirePolicy
    grace: float | None
    """Seconds."""
    most: int

    def __init__(self, policy: str = MisfirePolicy.ONCE, grace: Duration | None = None, most: int = MOST_CAUGHT_UP) -> None:
        if policy not in list(MisfirePolicy):
            raise InvalidArgument(f"misfire is {policy!r}: give 'skip', 'once' or 'all'")
        try:
            object.__setattr__(self, "policy", MisfirePolicy(policy))
            object.__setattr__(self, "grace", None if grace is None else milliseconds(grace))
            object.__setattr__(self, "most", whole(most))
        except ValueError as error:
            raise InvalidArgument(f"misfire: {error}") from None

    def tolerates(self, late: timedelta, interval: timedelta | None) -> bool:
        """Say whether an occurrence that is so late is still in time; ``interval`` is the time to the one after it."""
        if self.grace is not None:
            return late.total_seconds() <= self.grace
        half = LONGEST_GRACE if interval is None else interval.total_seconds() / 2
        return late.total_seconds() <= min(LONGEST_GRACE, half)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a due schedule does now."""

    run: datetime | None
    """The occurrence to run; ``None`` where all that were due are skipped."""
    next_at: datetime | None
    """The time after it; ``None`` where it follows from the end of the run, or there is none any more."""
    missed: tuple[datetime, datetime] | None = None
    """The first of the occurrences that are not run, and the moment up to which."""


def plan(timing: Timing, misfire: Misfire, due_at: datetime, now: datetime) -> Plan:
    """Decide what to run of the occurrences from ``due_at``, which has come, to ``now``, the database's."""
    following = timing.after(due_at)
    if misfire.tolerates(now - due_at, None if following is None else following - due_at):
        return Plan(due_at, following if timing.planned else None)
    kept = timing.due(due_at, now, misfire.most if misfire.policy is MisfirePolicy.ALL else 1)
    run = kept[0]
    following = timing.after(run)
    if misfire.policy is MisfirePolicy.SKIP and not misfire.tolerates(now - run, None if following is None else following - run):
        # Only what is known ahead has a grid to return to.
        return Plan(None, following if timing.planned else timing.after(now), (due_at, now))
    return Plan(run, following if timing.planned else None, (due_at, run) if run != due_at else None)


def replan(timing: Timing, now: datetime, *, began: datetime | None, ended: datetime | None) -> datetime | None:
    """Return the next time of a schedule whose timing is new, given the scheduled time and the end of its last run.

    What the new timing would already have done by now is due now.
    """
    last = began if timing.planned else ended
    following = timing.after(now if last is None or not isinstance(timing, (FixedRate, FixedDelay)) else last)
    return None if following is None else max(following, now)


def later(moment: datetime, wait: float) -> datetime | None:
    """Return the moment so many seconds later; ``None`` where no calendar reaches it."""
    try:
        return moment + timedelta(seconds=wait)
    except OverflowError:
        return None


def name_fault(name: object) -> str | None:
    """Return what is wrong with a schedule's name, if anything."""
    if not isinstance(name, str) or not name or not name.isprintable() or name != name.strip():
        return f"the schedule's name is {name!r:.80}: give a printable text, such as 'nightly-report'"
    if len(name) > LONGEST_NAME:
        return f"the schedule's name {name!r:.80} has {len(name)} characters: {LONGEST_NAME} are the most"
    return None


def _duration(kind: str, value: Duration) -> float:
    try:
        return milliseconds(value)
    except ValueError as error:
        raise InvalidArgument(f"{kind}: {error}") from None

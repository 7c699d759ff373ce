"""What a schedule is made of, and its JSON form: whole milliseconds, so that what two versions of an app write can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ..domain.backoff import Backoff, Series
from ..domain.errors import InvalidArgument
from ..domain.schedule import Dynamic, FixedDelay, FixedRate, Misfire, Timing
from .cron import Cron


@dataclass(frozen=True, slots=True)
class Definition:
    """When a schedule runs, and what it does about failures and missed times."""

    timing: Timing
    on_failure: Backoff | None = None
    """``None``: nothing is tried again if the schedule stands in the code; the type's retry policy if it is stored."""
    misfire: Misfire = Misfire()  # noqa: RUF009 - frozen
    priority: int = 0

    def form(self) -> dict[str, Any]:
        """Return what is stored of it."""
        return {
            "timing": _timing_form(self.timing),
            "on_failure": None if self.on_failure is None else _backoff_form(self.on_failure),
            "misfire": {"policy": self.misfire.policy.value, "grace": _whole(self.misfire.grace), "most": self.misfire.most},
            "priority": self.priority,
        }

    def text(self) -> str:
        """Return the JSON text that is stored."""
        return json.dumps(self.form())


def read_definition(form: Mapping[str, Any]) -> Definition:
    """Return the definition of a stored form.

    Raises:
        InvalidArgument: it was stored by a newer version, or damaged.
    """
    try:
        misfire, on_failure = form["misfire"], form["on_failure"]
        grace = misfire["grace"]
        return Definition(
            _timing(form["timing"]),
            None if on_failure is None else _backoff(on_failure),
            Misfire(misfire["policy"], None if grace is None else grace / 1000, misfire["most"]),
            form["priority"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(
            f"the stored schedule can not be read ({type(error).__name__}: {error}): was it written by a newer version?"
        ) from error


def digest(form: Mapping[str, Any]) -> str:
    """Return a short name for a stored form, the same on every database."""
    return blake2b(json.dumps(form, sort_keys=True).encode(), digest_size=8).hexdigest()


def checked_timing(value: object) -> Timing:
    """Return the timing that a caller gave.

    Raises:
        InvalidArgument: it is none.
    """
    if isinstance(value, (Cron, FixedRate, FixedDelay, Dynamic)):
        return value
    raise InvalidArgument(
        f"{value!r:.80} does not say when to run: give Cron('0 3 * * *'), FixedRate('1h'), FixedDelay('10m') or Dynamic('10m')"
    )


def _timing_form(timing: Timing) -> dict[str, Any]:
    match timing:
        case Cron(expression=expression, timezone=timezone):
            return {"kind": "cron", "expression": expression, "timezone": timezone}
        case FixedRate(period=period):
            return {"kind": "rate", "period": _whole(period)}
        case FixedDelay(delay=delay):
            return {"kind": "delay", "delay": _whole(delay)}
        case Dynamic(default=default):
            return {"kind": "dynamic", "default": _whole(default)}
        case _:
            raise InvalidArgument(f"{timing!r} can not be stored")


def _timing(form: Mapping[str, Any]) -> Timing:
    match form["kind"]:
        case "cron":
            return Cron(form["expression"], form["timezone"])
        case "rate":
            return FixedRate(form["period"] / 1000)
        case "delay":
            return FixedDelay(form["delay"] / 1000)
        case "dynamic":
            return Dynamic(form["default"] / 1000)
        case kind:
            raise ValueError(f"kind {kind!r}")


def _backoff_form(backoff: Backoff) -> dict[str, Any]:
    return {
        "series": backoff.series.value,
        "base": _whole(backoff.base),
        "max_attempts": backoff.max_attempts,
        "cap": _whole(backoff.cap),
    }


def _backoff(form: Mapping[str, Any]) -> Backoff:
    return Backoff(Series(form["series"]), form["base"] / 1000, form["max_attempts"], form["cap"] / 1000)


def _whole(wait: float | None) -> int | None:
    return None if wait is None else round(wait * 1000)

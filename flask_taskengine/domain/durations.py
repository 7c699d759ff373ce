"""Durations in the forms that settings, verbs and policies accept."""

from __future__ import annotations

import math
import re
from datetime import timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)?")

FORMS = 'a timedelta, seconds as a number, or a text such as "500ms", "30s", "5m", "2h" or "7d"'


def seconds(value: timedelta | float | str) -> float:
    """Convert a duration in any documented form to seconds.

    Raises:
        ValueError: the value is in none of the forms, is negative, or is not finite.
    """
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, bool):
        raise ValueError(f"{value!r} is no duration: give {FORMS}")
    elif isinstance(value, (int, float)):
        number = float(value)
    elif isinstance(value, str) and (match := _TEXT.fullmatch(value.strip())):
        number = float(match["number"]) * _UNITS[match["unit"] or "s"]
    else:
        raise ValueError(f"{value!r} is no duration: give {FORMS}")
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is no duration: it must be finite and not negative")
    return number


def spoken(number: float) -> str:
    """Write seconds for a person: ``"30 s"``, ``"5 min"``, ``"2 h"``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if number >= size and number % size == 0:
            return f"{number / size:g} {unit}"
    return f"{number:g} s"

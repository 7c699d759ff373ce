"""Durations in the forms that settings, verbs and policies accept."""

from __future__ import annotations

import re
from datetime import timedelta

from .values import shown

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(?P<number>[+-]?[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>ms|s|min|m|h|d)?")

FORMS = 'a timedelta, seconds as a number, or a text such as "500ms", "30s", "5m", "2h" or "7d"'

LONGEST = 36_500 * 86400.0
"""A hundred years in seconds: added to now it is a date in every database, and any lock can wait for it."""


def seconds(value: timedelta | float | str) -> float:
    """Convert a duration in any documented form to seconds; a number, also one written as text, is seconds.

    Raises:
        ValueError: the value is in none of the forms, is negative, is not finite, or is longer than 100 years.
    """
    given: float
    if isinstance(value, timedelta):
        given = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        given = value
    elif isinstance(value, str) and (match := _TEXT.fullmatch(value.strip())):
        given = float(match["number"]) * _UNITS[match["unit"] or "s"]
    else:
        raise ValueError(f"{shown(value)} is no duration: give {FORMS}")
    # Compared before it becomes a float: an integer may be too large for one. NaN compares as false.
    if not 0 <= given <= LONGEST:
        raise ValueError(f"{shown(value)} is out of range: give a duration from 0 to 100 years")
    return float(given)


def spoken(number: float) -> str:
    """Write seconds for a person, in a form that ``seconds`` reads: ``"30 s"``, ``"5 min"``, ``"2 h"``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if number >= size and number % size == 0:
            return f"{number / size:.15g} {unit}"
    return f"{number:.15g} s"


def roughly(number: float) -> str:
    """Write seconds for a person who wants no more than their size: ``"42 s"``, ``"3 min"``, ``"5 h"``, ``"8 d"``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if number >= 2 * size:
            return f"{number / size:.0f} {unit}"
    return f"{max(number, 0):.0f} s"

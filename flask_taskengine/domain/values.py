"""Checks of single numbers; every message says what was given and what to give instead."""

from __future__ import annotations

import sys

LARGEST = 2**31 - 1
"""The columns that hold counts are 32 bits wide."""

_SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """Write a value for an error message: its ``repr``, shortened, whatever the value is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the repr of an integer of 5,000 digits raises, and so may that of a host's class
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def whole(value: object, least: int = 1) -> int:
    """Return ``value`` if it is a whole number from ``least`` that fits a column.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise ValueError(f"{shown(value)} can not be used: give a whole number from {least} to {LARGEST}")
    return value


def number(value: object, least: float, most: float = sys.float_info.max) -> float:
    """Return ``value`` as a float if it is a finite number from ``least`` to ``most``.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        upper = "" if most == sys.float_info.max else f" to {most:g}"
        raise ValueError(f"{shown(value)} can not be used: give a number from {least:g}{upper}")
    return float(value)

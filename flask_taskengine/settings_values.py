"""How a single value of a setting is read, from Python code or from the environment, and what is said of a wrong one.

Every function here returns the value of the field or raises a ``ValueError`` that says what to give instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Literal, TypeVar

from .domain import values
from .domain.durations import seconds
from .domain.values import shown

T = TypeVar("T")
Parse = Callable[[Any], T]

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def flag(value: Any) -> bool:
    """Read a yes or no."""
    word = str(value).strip().lower() if isinstance(value, (bool, int, str)) else ""
    if word not in _BOOLEANS:
        raise ValueError(f"{shown(value)} is neither true nor false: give True or False")
    return _BOOLEANS[word]


def whole(least: int) -> Parse[int]:
    """Read a whole number from ``least``."""

    def parse(value: Any) -> int:
        text = isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", value)
        return values.whole(int(value) if text else value, least)

    return parse


def number(least: float, *most: float) -> Parse[float]:
    """Read a number from ``least``, to another one if that is given."""

    def parse(value: Any) -> float:
        text = isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,20}(\.[0-9]+)?\s*", value)
        return values.number(float(value) if text else value, least, *most)

    return parse


def positive(value: Any) -> float:
    """Read a duration that is longer than 0."""
    if (duration := seconds(value)) == 0:
        raise ValueError(f"{shown(value)} is too short: give a duration above 0")
    return duration


def optional(parse: Parse[T], absent: str) -> Parse[T | None]:
    """Read ``None`` as well; ``absent`` says what that is for."""

    def parse_or_none(value: Any) -> T | None:
        if value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null")):
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or None {absent}") from None

    return parse_or_none


def size(value: Any) -> int:
    """Read a size in bytes, also as text such as ``"64KiB"`` or ``"1MB"``."""
    text = re.fullmatch(r"\s*([0-9]{1,20})\s*([a-z]*)\s*", value.lower()) if isinstance(value, str) else None
    try:
        return values.whole(int(text[1]) * _BYTES[text[2]] if text and text[2] in _BYTES else value)
    except ValueError:
        raise ValueError(f'{shown(value)} is no size: give bytes from 1 to {values.LARGEST}, or a text such as "64KiB" or "1MiB"') from None


def choice(*words: str) -> Parse[str]:
    """Read one of some words."""

    def parse(value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else None
        if word not in words:
            raise ValueError(f"{shown(value)} can not be used: give {either(words)}")
        return word

    return parse


def off_or(*words: str) -> Parse[str | Literal[False]]:
    """Read one of some words, or that there is to be nothing of the kind."""
    parse_word = choice("False", *words)

    def parse(value: Any) -> str | Literal[False]:
        with suppress(ValueError):
            if flag(value) is False:
                return False
        return parse_word(value)

    return parse


def identifier(longest: int, if_empty: str = "") -> Parse[str]:
    """Read a name that no database needs quotes for; ``if_empty`` is the remedy for ``""``."""

    def parse(value: Any) -> str:
        if value == "" and if_empty:
            raise ValueError(f"'' can not be used: {if_empty}")
        if not isinstance(value, str) or not re.fullmatch("[a-z_][a-z0-9_]*", value) or len(value) > longest:
            raise ValueError(
                f"{shown(value)} can not be used: give at most {longest} lower-case letters, digits and underscores, no digit first"
            )
        return value

    return parse


def url_prefix(value: Any) -> str:
    """Read the path below which routes stand; a slash at its end is dropped, so that ``/`` becomes ``""``."""
    if not isinstance(value, str) or not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+/?|/", value):
        raise ValueError(f'{shown(value)} can not be used: give a path that starts with "/", such as "/taskengine"')
    return value.rstrip("/")


def dsn(value: Any) -> str:
    """Read the address of a PostgreSQL database. It may hold a password, so no message repeats it."""
    if not isinstance(value, str) or not re.match(r"\s*(postgres(ql)?(\+\w+)?://|\w+\s*=)", value):
        raise ValueError('this is no address of a PostgreSQL database: give "postgresql+psycopg://…" or "host=… dbname=…"')
    return value.strip()


def names(value: Any) -> tuple[str, ...]:
    """Read a list of names, also as text with commas."""
    parts = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple, set, frozenset)) or not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError(f'{shown(value)} is no list of names: give one such as ("password", "card_number")')
    return tuple(dict.fromkeys(part.strip() for part in parts))


def token(value: Any) -> str:
    """Read an API token. It is a secret, so no message repeats it."""
    if not isinstance(value, str) or not re.fullmatch("[!-~]+", value):
        raise ValueError("a token is printable ASCII without spaces: make one with Python's secrets.token_urlsafe()")
    return value


def either(words: Iterable[str]) -> str:
    """List words for a sentence: ``"a, b or c"``."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last

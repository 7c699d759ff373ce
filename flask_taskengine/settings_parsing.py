"""How the settings that are dicts are read, and how all that is wrong with them is gathered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from .domain.durations import seconds
from .domain.limits import Limits
from .domain.retention import Retention
from .domain.retry import RetryPolicy
from .domain.values import shown
from .settings_values import Parse, T, choice, either, number, optional, positive, token, whole


class WrongParts(ValueError):
    """Parts of a value are wrong; ``faults`` holds the path of each and what is wrong there."""

    def __init__(self, faults: Iterable[tuple[str, str]]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{path}: {fault}" for path, fault in self.faults))


class Faults:
    """Gathers what is wrong and where, so that one error can tell all of it."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    @contextmanager
    def at(self, path: str) -> Iterator[None]:
        """Note a ``ValueError`` of the block as a fault at ``path``, and go on after the block."""
        try:
            yield
        except WrongParts as error:
            self.found += [(path + inner, fault) for inner, fault in error.faults]
        except ValueError as error:
            self.found.append((path, str(error)))

    def raise_if_any(self) -> None:
        """Raise ``WrongParts`` with all that was found."""
        if self.found:
            raise WrongParts(self.found)


def unknown(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Say that a name is unknown, with the known one that it resembles, or all of them where they are few.

    A ``prefix`` that all names share is not compared: it would make every name resemble every other.
    """
    by_lower = {one.lower(): one for one in known}
    wanted = name.lower()
    close = get_close_matches(wanted, by_lower) or [one for one in by_lower if wanted and wanted in one]
    if close := sorted(close, key=lambda one: one[:2] != wanted[:2]):
        return f"unknown: did you mean {prefix}{by_lower[close[0]]}?"
    few = f"give {either(by_lower.values())}"
    return f"unknown: {few if len(by_lower) < 10 else 'remove it, or look its name up in the settings reference'}"


def mapping(value: Any, *, secret: bool = False) -> Mapping[Any, Any]:
    """Read a dict, also as JSON text."""
    given = value
    if isinstance(value, str):
        try:
            given = json.loads(value)
        except ValueError:
            given = None
    if isinstance(given, Mapping):
        return given
    raise ValueError(f"{'this' if secret else shown(value)} is no dict: give a dict, or the JSON text of one")


def per_type(parse: Parse[T]) -> Parse[dict[str, T]]:
    """Read a dict from task types to what ``parse`` reads."""

    def parse_all(value: Any) -> dict[str, T]:
        faults, parsed = Faults(), {}
        for task_type, part in mapping(value).items():
            with faults.at(f"[{shown(task_type)}]"):
                if not isinstance(task_type, str) or not task_type:
                    raise ValueError("this is no task type: give the text under which it is enqueued")
                parsed[task_type] = parse(part)
        faults.raise_if_any()
        return parsed

    return parse_all


def made_of(made: type[T], parts: Mapping[str, Parse[Any]]) -> Parse[T]:
    """Read an instance of ``made``, or the dict of arguments for one; the environment may spell them in upper case."""

    def parse(value: Any) -> T:
        if isinstance(value, made):
            return value
        faults, parsed = Faults(), {}
        for key, part in mapping(value).items():
            name = str(key).lower()
            with faults.at(f"[{shown(key)}]"):
                if name not in parts:
                    raise ValueError(unknown(name, parts))
                parsed[name] = parts[name](part)
        faults.raise_if_any()
        return made(**parsed)

    return parse


def tokens(value: Any) -> dict[str, str]:
    """Read what each API token may do; a fault names its place, since a token is a secret."""
    faults, parsed = Faults(), {}
    for place, (key, part) in enumerate(mapping(value, secret=True).items(), start=1):
        with faults.at(f"[token {place}]"):
            if part not in ("read", "read-write"):  # not shown: whoever swaps the two has the token here
                raise ValueError("what a token may do is read or read-write: give one of these")
            parsed[token(key)] = part
    faults.raise_if_any()
    return parsed


as_limits = made_of(Limits, {"per_node": optional(whole(1), "for no limit"), "cluster_wide": optional(whole(1), "for no limit")})

as_retry_policy = made_of(
    RetryPolicy,
    {
        "max_attempts": optional(whole(1), "to retry for ever"),
        "base_backoff": seconds,
        "multiplier": number(1),
        "max_backoff": seconds,
        "jitter": number(0, 1),
    },
)

as_retention = made_of(
    Retention,
    {status: optional(seconds, "to keep them") for status in ("succeeded", "cancelled", "failed", "dead")}
    | {"strategy": choice("delete", "archive"), "interval": positive},
)

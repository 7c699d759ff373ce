"""Faults of a payload by their path, gathered on the way up, so that nothing is spent on paths while nothing is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..domain.errors import PayloadError

MOST_FAULTS = 20
"""Kept of one payload; a list of a million wrong numbers is one mistake."""
LONGEST_PATH = 200
"""Characters."""

_NAME = re.compile(r"[^\W\d]\w{0,63}")


class Faults(Exception):
    """What is wrong, by path relative to the value: ``{".items[3].price": "Not a valid number."}``."""

    def __init__(self, found: Mapping[str, str] | str) -> None:
        self.found: dict[str, str] = {"": found} if isinstance(found, str) else dict(found)
        super().__init__(self.found)

    def under(self, step: str | int) -> dict[str, str]:
        """Return the faults as seen from the container that holds the value at this key or index."""
        prefix = step_to(step)
        return {prefix + path: fault for path, fault in self.found.items()}


def step_to(step: str | int) -> str:
    """Write one step of a path: ``.name``, ``[3]``, or ``["any key"]``."""
    if isinstance(step, int):
        return f"[{step}]"
    if _NAME.fullmatch(step):
        return f".{step}"
    return f"[{json.dumps(step if len(step) <= 64 else step[:63] + '…')}]"


def each(steps: Iterable[tuple[str | int, Callable[[Any], Any], Any]]) -> list[Any]:
    """Apply each step's function to its value and return what they return.

    Raises:
        Faults: those of all steps.
    """
    results: list[Any] = []
    found: dict[str, str] = {}
    for step, function, value in steps:
        try:
            results.append(function(value))
        except Faults as faults:
            if len(found) <= MOST_FAULTS:
                found |= faults.under(step)
    if found:
        raise Faults(found)
    return results


def payload_error(task_type: str, faults: Faults, root: str = "payload") -> PayloadError:
    """Return the error for the faults of one payload; of very many it keeps the first."""
    found = {_shown(root + path): fault for path, fault in list(faults.found.items())[:MOST_FAULTS]}
    if len(faults.found) > MOST_FAULTS:
        found[f"{root}…"] = "and more"
    return PayloadError(task_type, found)


def _shown(path: str) -> str:
    return path if len(path) <= LONGEST_PATH else f"{path[: LONGEST_PATH // 2]}…{path[-LONGEST_PATH // 2 :]}"

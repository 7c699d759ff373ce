"""The one way in which tests wait: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 10, what: str | Callable[[], str] = "the condition", poll: float = 0.01) -> T:
    """Call ``condition`` until it returns something true, and return that.

    Args:
        timeout: seconds.
        what: what is waited for, for the message; a callable is asked at the deadline.
        poll: seconds between two calls.

    Raises:
        AssertionError: the deadline has passed.
    """
    deadline = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() >= deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {timeout:g} s in vain for {said}; last seen: {value!r}")
        time.sleep(poll)

"""A worker's processes as their supervisor sees them."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .channel import Channel
from .desk import Desk
from .shared import SharedNumber

HANGS_AFTER = 3.0
"""Seconds without a sign of life, and seconds past a handler's deadline, after which a process counts as hanging."""
_BLIND_AFTER = 2.5
"""Seconds between two looks after which the supervisor itself was asleep, so that a child's silence proves nothing."""
_BORN_WITHIN = 60.0
"""Seconds within which a process that was forked must show its first sign of life."""
_LIVED = 30.0
"""Seconds of life after which a process that dies is replaced without a wait."""


@dataclass(slots=True)
class Vitals:
    """What a child writes for its supervisor to see, even while a handler lets no other thread run."""

    tick: SharedNumber = field(default_factory=SharedNumber)
    """Changes all the time."""
    deadline: SharedNumber = field(default_factory=SharedNumber)
    """The earliest deadline of its handlers, on the clock of ``time.monotonic``; 0 for none."""

    def close(self) -> None:
        self.tick.close()
        self.deadline.close()


class Child:
    """One process that runs tasks."""

    def __init__(self, pid: int, channel: Channel, vitals: Vitals, desk: Desk | None = None) -> None:
        self.pid = pid
        self.channel = channel
        self.vitals = vitals
        self.desk = desk
        if desk is not None:
            desk.pid.value = pid
        self.nodes: set[str] = set()
        """Names under which it may have claimed tasks."""
        self.born = time.monotonic()
        self.why: str | None = None
        """Why the supervisor has killed it."""
        self._tick = -1.0
        self._ticked = self._looked = self.born

    def hear(self) -> list[dict[str, Any]]:
        """Take what it says; return the messages that are the supervisor's affair."""
        left = []
        for message in self.channel.receive():
            match message:
                case {"joined": node}:
                    self.nodes.add(node)
                case {"left": node}:
                    self.nodes.discard(node)
                case _:
                    pass
            left.append(message)
        return left

    def hangs(self, now: float) -> str | None:
        """Return how it hangs, if it shows no sign of life and should; to be asked every second."""
        tick = self.vitals.tick.value
        if tick != self._tick or now - self._looked > _BLIND_AFTER:
            self._tick, self._ticked = tick, now
        self._looked = now
        silent, deadline = now - self._ticked, self.vitals.deadline.value
        if silent > HANGS_AFTER and 0 < deadline < now - HANGS_AFTER:
            return "was killed for overrunning its deadline: no other thread could run, so nothing else could end it"
        if tick == 0 and silent > _BORN_WITHIN:
            return f"was killed because it had not begun to work within {_BORN_WITHIN:g} s"
        return None

    def kill(self, why: str) -> None:
        """End it at once."""
        if self.why is None:
            self.why = why
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def epitaph(self, status: int) -> str:
        """Return how it died, given the status of ``waitpid``, as the end of a sentence that begins with its process."""
        if self.why is not None:
            return self.why
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            hint = " (kill -9, or out of memory)" if number == signal.SIGKILL else ""
            return f"was killed by {_name(number)}{hint}"
        return f"exited with code {os.waitstatus_to_exitcode(status)}"

    def close(self) -> None:
        """Give back what belongs to it, once it has ended."""
        self.channel.close()
        self.vitals.close()

    def leave_desk(self) -> None:
        """Leave its numbers to the next one."""
        if self.desk is not None:
            self.desk.seated.value = self.desk.pid.value = 0


class Place:
    """One of the processes that are to run: who has it, and when the next one is due."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.due = 0.0
        """When a process is to be started, on the clock of ``time.monotonic``; infinity for never again."""
        self._failures = 0

    def vacate(self, now: float, *, failed: bool) -> float:
        """Note that its process has ended or retires; return the seconds until the next one is due."""
        lived = 0.0 if self.child is None else now - self.child.born
        self._failures = self._failures + 1 if failed and lived < _LIVED else 0
        wait = 0.0 if self._failures == 0 else min(30.0, 0.1 * 2 ** min(self._failures, 20)) * random.uniform(0.5, 1.0)
        self.child = None
        self.due = now + wait
        return wait

    def close(self) -> None:
        """Start nothing here any more."""
        self.due = math.inf


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

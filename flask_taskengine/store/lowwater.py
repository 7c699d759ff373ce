"""Where claims begin to look while what is dead in the index can not be removed, because some transaction is held open."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from ..domain.task import Claimed

Lane = tuple[str, int]
"""A type and a priority: tasks of one lane stand in the index by the time at which they are due."""

_SLOW = 0.003
"""Seconds that the database may search for due tasks before it is worth knowing where to begin."""
_SHARE = 30
"""Of so many seconds, one may be spent on looking everywhere."""
_LONGEST = 2.0
"""Seconds after which a claim looks everywhere in any case."""
_SLACK = timedelta(seconds=1)
"""How far below its mark a lane is searched again: what is enqueued in a transaction is seen only when that has committed."""
_MOST_LANES = 200


class LowWater:
    """Remembers for each lane up to which time this node has seen everything taken.

    A claim that looks everywhere walks the index entry of each task which has been taken since the oldest open transaction began.
    Where that becomes slow, most claims search the known lanes only, each from a little below its mark on. Nothing is lost by
    that: every now and then a claim looks everywhere, and finds new lanes and what has come to stand below a mark. That is
    how long such a task may wait; and no claim is restricted while looking everywhere is quick.

    Not for use by two threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: dict[Lane, datetime] = {}
        self._everywhere_at = 0.0
        self._now: tuple[datetime, float] | None = None

    def everywhere_in(self) -> float:
        """Return the seconds until a claim looks everywhere again; 0 while every claim does."""
        return max(0.0, self._everywhere_at - self._clock()) if self._marks else 0.0

    def lanes(self, types: Collection[str]) -> dict[Lane, datetime]:
        """Return the lanes to search and the time from which on; empty where to look everywhere."""
        if self.everywhere_in() == 0:
            return {}
        return {lane: mark - _SLACK for lane, mark in self._marks.items() if lane[0] in types}

    def looked(self, claimed: Sequence[Claimed], exhausted: Collection[str], searched: float | None, *, everywhere: bool) -> None:
        """Take note of a claim.

        Args:
            claimed: what it took, in each lane the first that were due, in order.
            exhausted: the types of which nothing that was due is left.
            searched: the seconds for which the database searched, if it found anything.
            everywhere: whether it was not restricted to lanes.
        """
        now = self._clock()
        for task in claimed:
            lane = (task.type, task.priority)
            self._marks.pop(lane, None)
            self._marks[lane] = task.available_at
            self._now = (task.claimed_at, now)
        if self._now is not None:
            moment = self._now[0] + timedelta(seconds=now - self._now[1])
            self._marks |= {lane: max(mark, moment) for lane, mark in self._marks.items() if lane[0] in exhausted}
        for lane in list(self._marks)[:-_MOST_LANES]:
            del self._marks[lane]
        if everywhere and searched is not None:
            self._everywhere_at = now + min(_LONGEST, searched * _SHARE) if searched > _SLOW else 0.0

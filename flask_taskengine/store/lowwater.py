"""Where claims begin to look while what is dead in the index can not be removed, because some transaction is held open."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta

from ..domain.task import Claimed

Lane = tuple[str, int]
"""A type and a priority: tasks of one lane stand in the index by the time at which they are due."""

_SLOW = 0.003
"""Seconds that the database may search for due tasks before it is worth knowing where to begin."""
_SHARE = 60
"""Of so many seconds, one may be spent on looking everywhere; the survey that goes with it costs about as much again."""
_LONGEST = 2.0
"""Seconds after which a claim looks everywhere in any case."""
_SLACK = timedelta(seconds=1)
"""How far below its mark a lane is searched again: what is enqueued in a transaction is seen only when that has committed."""
_MOST_LANES = 1000
"""With more than these, every claim looks everywhere."""


class LowWater:
    """Remembers for each lane up to which time this node has seen everything taken.

    A claim that looks everywhere walks the index entry of each task which has been taken since the oldest open transaction began.
    Where that becomes slow, a survey finds all lanes, so that priorities go on to count, and most claims search these only, each
    from a little below its mark on. Nothing is lost by that: every now and then a claim looks everywhere, and finds new lanes and
    what has come to stand below a mark. That is how long such a task may wait; and no claim is restricted while looking
    everywhere is quick.

    Not for use by two threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: dict[Lane, datetime] = {}
        self._surveyed: frozenset[str] = frozenset()
        self.to_survey = False
        """Whether the lanes have to be surveyed before a claim can be restricted."""
        self._everywhere_at = 0.0
        self._now: tuple[datetime, float] | None = None

    def everywhere_in(self) -> float:
        """Return the seconds until a claim looks everywhere again; 0 while every claim does."""
        return max(0.0, self._everywhere_at - self._clock()) if self._marks else 0.0

    def lanes(self, types: Collection[str]) -> dict[Lane, datetime]:
        """Return the lanes to search and the time from which on; empty where to look everywhere."""
        if self.everywhere_in() == 0 or not self._surveyed.issuperset(types):
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
        if everywhere and searched is not None:
            self.to_survey = searched > _SLOW
            self._everywhere_at = now + min(_LONGEST, searched * _SHARE) if self.to_survey else 0.0

    def surveyed(self, types: Collection[str], begins: Mapping[Lane, datetime]) -> None:
        """Take note of all lanes of these types that have tasks, and of where each begins; an empty one keeps its mark."""
        self.to_survey = False
        empty = [(lane, mark) for lane, mark in self._marks.items() if lane not in begins]
        self._marks = dict(empty[-_MOST_LANES:]) | dict(begins)
        self._surveyed = frozenset(types) if len(begins) <= _MOST_LANES else frozenset()

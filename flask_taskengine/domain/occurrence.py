"""One due time of a schedule, as its task carries it: in the idempotency key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_KEY = re.compile(r"schedule:(?P<name>.+):(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?)Z(?P<by_hand>:now)?")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One due time of a schedule. Its key is unique, so no more than one task can exist for it."""

    name: str
    scheduled_at: datetime
    """In UTC."""
    by_hand: bool = False
    """A run that was asked for beside the regular ones."""

    @property
    def key(self) -> str:
        """The idempotency key: ``schedule:NAME:2026-11-30T03:00:00Z``, with ``:now`` at its end for a run by hand."""
        moment = self.scheduled_at.astimezone(UTC).replace(tzinfo=None).isoformat()
        return f"schedule:{self.name}:{moment}Z{':now' if self.by_hand else ''}"


def occurrence_of(idempotency_key: str | None) -> Occurrence | None:
    """Read a key back; ``None`` where it is not that of an occurrence."""
    match = None if idempotency_key is None else _KEY.fullmatch(idempotency_key)
    if match is None:
        return None
    try:
        moment = datetime.fromisoformat(match["time"]).replace(tzinfo=UTC)
    except ValueError:  # 2026-13-01 looks like a time
        return None
    return Occurrence(match["name"], moment, by_hand=match["by_hand"] is not None)


@dataclass(frozen=True, slots=True)
class OccurrenceEnd:
    """What the end of a run means for its schedule."""

    occurrence: Occurrence
    next_at: datetime | None
    """When the schedule runs next, be it to try this occurrence again; ``None`` where it does not."""

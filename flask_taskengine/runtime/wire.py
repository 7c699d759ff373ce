"""What a worker and the process of an isolated attempt tell each other: JSON objects, each with its length in front."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any

from ..domain.occurrence import OccurrenceEnd, occurrence_of
from ..domain.outcome import Ending, Failure, Interrupted, Outcome, Raised, Rejected, Returned, Snoozed, TimedOut, Verdict
from ..domain.states import TaskStatus
from ..domain.task import Claimed
from ..engine.schedule_context import ScheduleContext

_LENGTH = struct.Struct("!Q")
_CHUNK = 256 * 1024
_TIMES = ("available_at", "created_at", "claimed_at")
_SCHEDULE_TIMES = ("scheduled_at", "last_success_at", "next_at")
_SAID = ("error", "wanted", "state_text")
_ENDINGS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Returned, Raised, Rejected, Snoozed, TimedOut, Interrupted)}

Message = dict[str, Any]


class Wire:
    """One end of the line; many threads may send, one may read."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._sending = threading.Lock()
        self._unread = bytearray()

    def fileno(self) -> int:
        return self._line.fileno()

    def send(self, told: str, **values: Any) -> None:
        """Send a message; waits for the lock at most a second, which only an interrupt within ``send_if_free`` can have left taken."""
        with self._turn(1.0):
            self._send({"told": told, **values})

    def send_if_free(self, told: str, **values: Any) -> None:
        """Send a short message that may be lost, from code into which an interrupt can be raised at any moment."""
        with self._turn(0) as mine:
            if mine:
                self._send({"told": told, **values})

    def read(self) -> list[Message] | None:
        """Wait for the next bytes and return the messages that they complete; None where the other end is closed."""
        try:
            received = self._line.recv(_CHUNK)
        except OSError:
            return None
        if not received:
            return None
        self._unread += received
        return list(self._complete())

    def shut(self) -> None:
        """Wake the thread that reads here, and tell the other end that this one is closed."""
        try:
            self._line.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._line.close()

    @contextmanager
    def _turn(self, patience: float) -> Iterator[bool]:
        mine = self._sending.acquire(timeout=patience)
        try:
            yield mine
        finally:
            if mine:
                self._sending.release()

    def _send(self, message: Message) -> None:
        text = json.dumps(message, separators=(",", ":")).encode()
        # One call, so that a short message arrives whole or not at all.
        self._line.sendall(_LENGTH.pack(len(text)) + text)

    def _complete(self) -> Iterator[Message]:
        while len(self._unread) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._unread)[0]
            if len(self._unread) < end:
                return
            yield json.loads(self._unread[_LENGTH.size : end])
            del self._unread[:end]


# --- the values that travel ---------------------------------------------------------------------------------------------


def from_claimed(task: Claimed) -> Message:
    """Write a claimed task."""
    # Not asdict, which would copy the payload.
    return {one.name: getattr(task, one.name) for one in fields(Claimed)} | {name: getattr(task, name).isoformat() for name in _TIMES}


def to_claimed(told: Message) -> Claimed:
    """Read a claimed task."""
    return Claimed(**told | {name: datetime.fromisoformat(told[name]) for name in _TIMES})


def from_ending(ending: Ending) -> Message:
    """Write how an attempt ended."""
    return {"kind": type(ending).__name__, **asdict(ending)}


def to_ending(told: Message) -> Ending:
    """Read how an attempt ended."""
    values = dict(told)
    kind = _ENDINGS[values.pop("kind")]
    if "failure" in values:
        values["failure"] = Failure(**values["failure"])
    ending: Ending = kind(**values)
    return ending


def from_outcome(outcome: Outcome | None) -> Message | None:
    """Write what was recorded; None where the attempt had lost the task."""
    if outcome is None:
        return None
    end = outcome.occurrence
    written = asdict(replace(outcome, occurrence=None))
    return written | {"occurrence": end and {"key": end.occurrence.key, "next_at": end.next_at and end.next_at.isoformat()}}


def to_outcome(told: Message | None) -> Outcome | None:
    """Read what was recorded."""
    if told is None:
        return None
    failure, end = told["failure"], told["occurrence"]
    read = {"verdict": Verdict(told["verdict"]), "status": TaskStatus(told["status"]), "failure": failure and Failure(**failure)}
    return Outcome(**told | read | {"occurrence": end and _occurrence_end(**end)})


def _occurrence_end(key: str, next_at: str | None) -> OccurrenceEnd:
    occurrence = occurrence_of(key)
    assert occurrence is not None
    return OccurrenceEnd(occurrence, None if next_at is None else datetime.fromisoformat(next_at))


def from_schedule(schedule: ScheduleContext | None) -> Message | None:
    """Write what a handler is told of its schedule; not what it says itself."""
    if schedule is None:
        return None
    told = {one.name: getattr(schedule, one.name) for one in fields(ScheduleContext) if one.name not in _SAID}
    return told | {name: told[name] and told[name].isoformat() for name in _SCHEDULE_TIMES}


def to_schedule(told: Message | None) -> ScheduleContext | None:
    """Read what a handler is told of its schedule."""
    if told is None:
        return None
    return ScheduleContext(**told | {name: told[name] and datetime.fromisoformat(told[name]) for name in _SCHEDULE_TIMES})


def from_said(schedule: ScheduleContext | None) -> Message | None:
    """Write what a handler has said of its schedule: its state, and the next time."""
    if schedule is None:
        return None
    wanted = schedule.wanted
    return {"state_text": schedule.state_text, "wanted": wanted.isoformat() if isinstance(wanted, datetime) else wanted}


def hear_said(schedule: ScheduleContext | None, told: Message | None) -> None:
    """Note what a handler has said of its schedule in another process."""
    if schedule is not None and told is not None:
        wanted = told["wanted"]
        schedule.state_text = told["state_text"]
        schedule.wanted = datetime.fromisoformat(wanted) if isinstance(wanted, str) else wanted

"""What travels between a worker and the process of an isolated attempt."""

from __future__ import annotations

import json
import random
import socket
from datetime import UTC, datetime
from typing import Any

import pytest

from flask_taskengine.domain.outcome import Ending, Failure, Interrupted, Outcome, Raised, Rejected, Returned, Snoozed, TimedOut, decide
from flask_taskengine.domain.retry import RetryPolicy
from flask_taskengine.domain.task import Claimed
from flask_taskengine.runtime.wire import Message, Wire, from_claimed, from_ending, from_outcome, to_claimed, to_ending, to_outcome

BOOM = Failure("ValueError", "boom \x00 \ud800 ä€😀", "Traceback …")
ENDINGS: list[Ending] = [
    Returned(),
    Returned('{"a": 1}'),
    Raised(BOOM),
    Raised(BOOM, after=3.5),
    Rejected(Failure("Reject", "")),
    Snoozed(7200.0),
    TimedOut(30.0),
    TimedOut(0.5, "Traceback …"),
    Interrupted(),
]


def _travelled(message: Any) -> Any:
    return json.loads(json.dumps(message))


@pytest.mark.parametrize("ending", ENDINGS)
def test_endings_arrive_as_they_left(ending: Ending) -> None:
    """Every way in which an attempt can end in its process is the same value on the other side."""
    assert to_ending(_travelled(from_ending(ending))) == ending


@pytest.mark.parametrize("ending", ENDINGS)
def test_outcomes_arrive_as_they_left(ending: Ending) -> None:
    """So is what was recorded, also where the task was lost."""
    outcome = decide(ending, attempts=1, max_attempts=2, policy=RetryPolicy(), cancel_requested=False, rng=random.Random(1))
    arrived = to_outcome(_travelled(from_outcome(outcome)))
    assert arrived == outcome
    assert isinstance(arrived, Outcome)
    assert type(arrived.status) is type(outcome.status)
    assert to_outcome(_travelled(from_outcome(None))) is None


def test_a_claimed_task_arrives_as_it_left() -> None:
    """Times keep their microseconds and their zone; the payload is what JSON can hold."""
    now = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    payload = {"a": [1, 2.5, None, True, "ä€😀\ud800"], "b": 10**30}
    task = Claimed(1, "t", payload, -3, 2, None, now, now.replace(microsecond=0), now, 7, "key", '{"traceparent": "00-1"}')
    assert to_claimed(_travelled(from_claimed(task))) == task


def _read_all(wire: Wire, number: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < number:
        messages += wire.read() or []
    return messages


def test_messages_are_cut_apart_wherever_they_break() -> None:
    """A message may arrive in many pieces, and a piece may hold many messages."""
    ours, theirs = socket.socketpair()
    one, whole = socket.socketpair()
    with ours, theirs, one, whole:
        sender = Wire(one)
        for number in range(3):
            sender.send("n", number=number, text="x" * number * 500)
        one.close()
        wire, data = Wire(ours), whole.recv(10_000)
        messages: list[Message] = []
        for place in range(0, len(data), 7):
            theirs.sendall(data[place : place + 7])
            messages += wire.read() or []
        assert [(message["number"], len(message["text"])) for message in messages] == [(0, 0), (1, 500), (2, 1000)]


def test_a_closed_line_says_so() -> None:
    """Reading ends, and half a message is no message."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"\0\0\0\0\0\0\0\x09{")
        theirs.close()
        wire = Wire(ours)
        assert wire.read() == []
        assert wire.read() is None


def test_what_may_be_lost_never_waits() -> None:
    """A report of progress is left out while another thread sends."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire, other = Wire(ours), Wire(theirs)
        with wire._turn(0):
            wire.send_if_free("progress", done=1)
        wire.send_if_free("progress", done=2)
        assert _read_all(other, 1) == [{"told": "progress", "done": 2}]

"""Events that the supervisor would announce: no code of the app runs there, so one of its children announces them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ..domain.outcome import Failure
from ..signals import namespace
from .channel import Channel
from .events import tell
from .host import Host

Event = dict[str, Any]


class Relay:
    """Takes the supervisor's events, and keeps them until there is a child to tell.

    Args:
        wake: called, from any thread, when there is something to pass on.
    """

    def __init__(self, host: Host, wake: Callable[[], None]) -> None:
        self._host = host
        self._wake = wake
        self._events: deque[Event] = deque()
        host.tell_elsewhere = self._take

    def pass_on(self, channels: Iterable[Channel]) -> None:
        """Tell the first child that takes in what it is told."""
        for channel in channels:
            channel.flush()
            while self._events and not channel.holds_back:
                channel.send(event=self._events.popleft())

    def announce_here(self) -> None:
        """Announce the rest in this process: there are no children any more, and there will be none."""
        self._host.tell_elsewhere = None
        while self._events:
            announce(self._host, self._events.popleft())

    def _take(self, name: str, fields: Mapping[str, Any]) -> None:
        failure = fields.get("failure")
        self._events.append({"name": name, **fields, "failure": failure and asdict(failure)})
        self._wake()


class Told:
    """Announces in a child what the supervisor passes on, apart from the thread that listens to it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turn = threading.Lock()

    def announce(self, events: list[Event]) -> None:
        """Announce events, in order, soon."""
        if events:
            threading.Thread(target=self._announce, args=(events,), name="taskengine-relay", daemon=True).start()

    def _announce(self, events: list[Event]) -> None:
        with self._turn:
            for event in events:
                announce(self._host, event)


def announce(host: Host, event: Event) -> None:
    """Announce what a relay has taken."""
    fields = {name: value for name, value in event.items() if name not in ("name", "failure")}
    if event["failure"] is not None:
        fields["failure"] = Failure(**event["failure"])
    tell(namespace[event["name"]], host, **fields)

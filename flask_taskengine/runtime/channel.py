"""What the supervisor and its children say to each other: JSON objects, one per line, over a pair of sockets.

A child says ``joined`` and ``left`` (a node's name), ``ready`` (how wake-ups come), and ``retire`` (why another is to take its
place) with ``tasks`` (how many it has claimed). The supervisor says ``lost`` (a node's name), ``stop``, ``force`` and ``event``
(something to be announced). The end of the line says that the other has died.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import Any

_MOST = 65_536


class Channel:
    """One end of the line; sending is for any thread."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._rest = b""
        self._unsent = b""
        self._lock = threading.Lock()
        self.ended = False
        """Whether the other end is closed and everything from it has been received."""

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return both ends of a new line."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    def send(self, **message: Any) -> None:
        """Send one message and never wait: the other end reads all the time, or it is dead or hangs and will be killed."""
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send what the other end had no room for."""
        with self._lock, suppress(OSError):
            if self._unsent:
                self._unsent = self._unsent[self._line.send(self._unsent, socket.MSG_DONTWAIT) :]

    @property
    def holds_back(self) -> bool:
        """Whether the other end has not had room for all that was sent."""
        return bool(self._unsent)

    def receive(self) -> list[dict[str, Any]]:
        """Return what has come since the last call, without waiting."""
        while not self.ended:
            try:
                data = self._line.recv(_MOST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.ended = not data
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        self._line.close()

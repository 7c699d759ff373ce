"""Signals and wake-ups from threads, as something that a selector can wait for."""

from __future__ import annotations

import signal
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT)


class Inbox:
    """Collects the signals that the process gets. For the main thread, which alone may install it."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._signals: deque[int] = deque()
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}

    def install(self) -> None:
        """Take the signals from now on, but not Ctrl-C where the process was started in the background, to ignore it."""
        for number in self._numbers:
            if number != signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def uninstall(self) -> None:
        """Put back what was there before."""
        signal.set_wakeup_fd(-1)
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        """Make ``fileno`` readable; from any thread."""
        with suppress(OSError):
            self._writer.send(b"\0")

    def take(self) -> list[int]:
        """Return the signals that have come since the last call, in order."""
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def close(self) -> None:
        """Close it; another process that has inherited it keeps its own."""
        self._reader.close()
        self._writer.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

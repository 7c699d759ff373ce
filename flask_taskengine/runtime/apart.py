"""The process of one isolated attempt, as the worker sees it: a line to talk on, and a leash by which it is held."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

from ..domain.outcome import Failure
from ..engine.failures import TRACEBACK_LIMIT, clean_text
from . import run
from .wire import Message, Wire

SHOW, KILL = b"s", b"k"
"""Said on the leash: write where you are, and end."""
DIED = "ProcessDied"
"""The class of the failure of an attempt whose process ended without an end of its own."""
_SHOW_WAIT = 0.2
"""Seconds that a process which hangs has to write where."""
_EXIT_WAIT = 2.0
"""Seconds that a process has to end after its attempt has."""
_KILL_WAIT = 5.0
"""Seconds until a killed process that is not reported as gone is no longer waited for; it runs no code any more."""
_PAUSE = 0.02
"""Seconds without a word after which it has written all that it had to say."""
_OF_FAILED_ALLOCATIONS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""What ends a program in C to which the system refuses memory, and which does not say so."""
_TRACE_MOST = 64 * 1024
_OWN_FRAMES = f'\n  File "{run.__file__}"'


class Process:
    """Owned by the thread that runs the attempt; ``kill`` may be called from any other.

    Args:
        line: where it talks; closed at its other end when the process has ended.
        leash: to the zygote, which kills the process when told to, or when the leash is cut, and says how it ended.
        trace: file descriptor of the pipe to which a dying process writes where it was.
        memory: its cap in bytes; None for none.
    """

    def __init__(self, line: socket.socket, leash: socket.socket, trace: int, memory: int | None) -> None:
        self.wire = Wire(line)
        self._leash = leash
        self._trace = trace
        self._memory = memory
        self._lock = threading.Lock()
        self._closed = False
        self._killed_because = ""
        self._shown = b""
        self.unwatched = False
        """Whether the zygote has let go of it without a word."""
        self._kill_at: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._closed = True
        self.wire.close()
        self._leash.close()
        os.close(self._trace)

    def messages(self) -> Iterator[Message]:
        """Yield what it says until it has ended or is killed."""
        poll = select.poll()
        poll.register(self.wire.fileno(), select.POLLIN)
        poll.register(self._leash.fileno(), select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(self._patience())}
            if self.wire.fileno() in ready:
                told = self.wire.read()
                if told is None:
                    return
                yield from told
            elif ready:
                # Ended, though what it has started may still hold the other end of the line.
                return
            else:
                self.kill("the process did not complete its attempt after its handler had ended, and was killed")

    def expect_end(self, within: float) -> None:
        """Kill it unless it has ended in so many seconds; for the thread that reads its messages."""
        self._kill_at = time.monotonic() + within

    def _patience(self) -> int | None:
        return None if self._kill_at is None else max(0, int((self._kill_at - time.monotonic()) * 1000) + 1)

    def kill(self, why: str, *, show: bool = False) -> None:
        """Kill it with all that it has started; with ``show`` it writes first where it is."""
        if show and self._say(SHOW):
            self._watch_it_write()
        self._killed_because = self._killed_because or why
        self._say(KILL)
        self.wire.shut()

    def _watch_it_write(self) -> None:
        with suppress(OSError, ValueError):  # Closed meanwhile: it has ended after all.
            patience = _SHOW_WAIT
            while select.select([self._trace], [], [], patience)[0] and (text := os.read(self._trace, _TRACE_MOST)):
                self._shown += text
                patience = _PAUSE

    def _say(self, word: bytes) -> bool:
        with self._lock, suppress(OSError):
            if not self._closed:
                self._leash.sendall(word)
                return True
        return False

    def join(self) -> Failure:
        """Wait until it has ended, kill it where it does not, and say how it ended."""
        told = self._last_words(_KILL_WAIT if self._killed_because else _EXIT_WAIT)
        if told is None:
            self.kill("the process no longer talked to its worker and was killed")
            told = self._last_words(_KILL_WAIT)
        self.unwatched = told == {}
        return Failure(DIED, self._killed_because or _described(told or {}, self._memory), self._traceback())

    def _last_words(self, wait: float) -> dict[str, Any] | None:
        text = bytearray()
        end = time.monotonic() + wait
        while True:
            self._leash.settimeout(max(0.001, end - time.monotonic()))
            try:
                received = self._leash.recv(4096)
            except TimeoutError:
                return None
            except OSError:
                received = b""
            if not received:
                break
            text += received
        return json.loads(text) if text else {}

    def _traceback(self) -> str | None:
        """Return where it was, if it has said so: the most recent call first, down to the handler."""
        with suppress(OSError):
            self._shown += os.read(self._trace, _TRACE_MOST)
        text = self._shown.decode(errors="replace").partition(_OWN_FRAMES)[0]
        return clean_text(text, TRACEBACK_LIMIT) or None


def _described(told: dict[str, Any], memory: int | None) -> str:
    if "refused" in told:
        return f"the process could not be started: {told['refused']}"
    if "status" not in told:
        return "the process is not watched any more: the one that starts them has ended, or has too many open files"
    code = os.waitstatus_to_exitcode(told["status"])
    if code >= 0:
        return f"the process ended with exit code {code} before its handler did"
    by = f"the process was killed by {_name(-code)}"
    if memory is not None and -code in _OF_FAILED_ALLOCATIONS:
        return f"{out_of_memory(memory)}, most likely; {by}, its peak was {told['peak']} MiB"
    hint = ", as a system does that runs out of memory" if -code == signal.SIGKILL else ""
    return f"{by}{hint}; its peak was {told['peak']} MiB of memory"


def out_of_memory(cap: int) -> str:
    """Return what is said of an attempt that wanted more than its cap."""
    return f"killed: out of memory cap of {cap / 2**20:.15g} MiB"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

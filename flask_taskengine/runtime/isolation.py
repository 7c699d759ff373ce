"""Attempts of types with ``isolation="process"``, as the worker sees them: each in a process of its own, which can be killed."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..domain.errors import ConfigError, TaskInterrupt, TaskTimedOut
from ..domain.outcome import Ending, Interrupted, Outcome, Raised, TimedOut
from ..domain.task import Claimed
from ..engine.context import TaskContext
from ..signals import namespace
from .apart import Process
from .database import STATEMENT_DEADLINE
from .events import tell
from .host import Host
from .run import Phase, Run, ending_of_interrupt
from .wire import from_claimed, from_schedule, hear_said, to_ending, to_outcome

START = b"+"
"""Said to the zygote, with the file descriptors of the new process."""
_STOP_WAIT = 5.0
_COMPLETION_WAIT = STATEMENT_DEADLINE + 1.0
"""Seconds from the end of the handler to the end of the attempt; the process itself gives up earlier."""


def isolated_types(host: Host, only: Iterable[str] | None) -> list[str]:
    """Return those of a worker's types that run in processes of their own."""
    types = host.registry.types() if only is None else only
    found = ((task_type, host.registry.get(task_type)) for task_type in types)
    return sorted(task_type for task_type, processor in found if processor is not None and processor.isolation == "process")


def can_not_isolate(types: Iterable[str]) -> ConfigError:
    """Return the error for a worker that can not start processes."""
    return ConfigError(
        f"the task types {', '.join(types)} have isolation='process': a worker can not start processes once its own has threads, "
        "as one inside a web process has; run `flask taskengine worker` for them, or give this worker other types"
    )


@dataclass(frozen=True, slots=True)
class Recorded:
    """The attempt has ended and was recorded in its own transaction; None where it had lost the task."""

    outcome: Outcome | None


class Isolation:
    """The way to the zygote, the process that forks the processes of attempts.

    Args:
        zygote: its process id.
        control: the line to it; it ends, and kills all it has started, when this end is closed.
        memory: bytes that an attempt may take beyond the app's own; None for no cap.
    """

    def __init__(self, zygote: int, control: socket.socket, memory: int | None) -> None:
        self.zygote = zygote
        self.memory = memory
        self._control = control
        self._lock = threading.Lock()
        self.lost = False
        """Whether the zygote has died; another can not be made, since this process has threads by now."""
        self.on_lost: Callable[[], None] | None = None

    def launch(self) -> Process:
        """Start a process; it waits for the first message.

        Raises:
            OSError: the zygote is gone, or this process has too many open files.
        """
        line, leash, (trace, their_trace) = socket.socketpair(), socket.socketpair(), os.pipe()
        os.set_blocking(trace, False)
        os.set_blocking(their_trace, False)
        process = Process(line[0], leash[0], trace, self.memory)
        try:
            with self._lock:
                socket.send_fds(self._control, [START], [line[1].fileno(), leash[1].fileno(), their_trace])
        except BaseException:
            process.__exit__()
            raise
        finally:
            line[1].close()
            leash[1].close()
            os.close(their_trace)
        return process

    def look(self) -> bool:
        """Look whether the zygote lives."""
        try:
            self.lost = self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return True
        except OSError:
            self.lost = True
        if self.lost and self.on_lost is not None:
            self.on_lost()
        return not self.lost

    def stop(self) -> None:
        """End the zygote and every process that it has started."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
            self._control.settimeout(_STOP_WAIT)
            self._control.recv(1)
        self._control.close()
        with suppress(ChildProcessError):  # Somebody in this process has waited for all of its children.
            if os.waitpid(self.zygote, os.WNOHANG)[0] == 0:
                os.kill(self.zygote, signal.SIGKILL)
                os.waitpid(self.zygote, 0)


class _Told(threading.Event):
    """An event of which the process of the attempt learns."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def set(self) -> None:
        super().set()
        self._tell()


class IsolatedRun(Run):
    """One attempt in a process of its own; its thread here waits for it."""

    def __init__(self, host: Host, task: Claimed, context: TaskContext, isolation: Isolation) -> None:
        super().__init__(host, task, context)
        self._isolation = isolation
        self._process: Process | None = None
        self._talk = threading.Lock()
        self._listens = False
        self._untold: list[dict[str, str]] = []
        context.cancel_event = _Told(partial(self._tell, told="cancel"))
        context.lease_lost_event = _Told(partial(self._tell, told="lease_lost"))

    # --- by the thread that waits for it ------------------------------------------------------------------------------

    def attempt(self, node: str, timeout: float | None) -> Ending | Recorded | None:
        """Run the attempt to its end in another process; None where it has lost its task."""
        try:
            process = self._isolation.launch()
        except OSError:
            if self._isolation.look():
                raise
            return Interrupted()
        with process:
            with self._lock:
                if self.interrupted is not None:
                    return ending_of_interrupt(self.interrupted, timeout, None)
                self._phase = Phase.HANDLER
                self._process = process
            ending = self._converse(process, node)
            failure = process.join()
        if process.unwatched:
            self._isolation.look()
        if ending is None:
            ending = Raised(failure) if self.interrupted is None else ending_of_interrupt(self.interrupted, timeout, failure.traceback)
        return replace(ending, timeout=timeout or 0.0) if isinstance(ending, TimedOut) else ending

    def _converse(self, process: Process, node: str) -> Ending | Recorded | None:
        with suppress(OSError):  # It has died already; how is asked later.
            process.wire.send("run", task=from_claimed(self.task), node=node, trace=self._trace(), **self._limits())
        self._tell_from_now_on()
        for message in process.messages():
            match message["told"]:
                case "progress":
                    self.context.progress(message["done"], message["total"], message["note"])
                case "event":
                    tell(namespace[message["name"]], self.host, **message["fields"])
                case "left":
                    with self._lock:
                        self._phase = Phase.ENDING
                    process.expect_end(_COMPLETION_WAIT)
                case "ended":
                    hear_said(self.context.schedule, message["said"])
                    return to_ending(message["ending"])
                case "recorded":
                    return Recorded(to_outcome(message["outcome"]))
        return None

    def _trace(self) -> dict[str, str]:
        return {} if self.host.tracing is None else self.host.tracing.carry()

    def _limits(self) -> dict[str, Any]:
        limits = {"deadline": self.context.deadline, "max_attempts": self.context.max_attempts, "memory": self._isolation.memory}
        return limits | {"schedule": from_schedule(self.context.schedule)}

    # --- by other threads ---------------------------------------------------------------------------------------------

    def interrupt(self, reason: type[TaskInterrupt], cancel_statement: Callable[[Any], None]) -> None:
        """Let the process end its handler, as a thread does."""
        with self._lock:
            if self._phase not in (Phase.WAITING, Phase.HANDLER) or self.interrupted is not None:
                return
            self.interrupted = reason
        self._tell(told="interrupt", reason=reason.__name__)

    def abandon(self) -> bool:
        """Kill a process that has not reacted: the thread that waits for it ends by itself, and need not be given up."""
        with self._lock:
            process = self._process if self._phase is Phase.HANDLER else None
        if process is None:
            return super().abandon()
        process.kill("the process did not react and was killed", show=self.interrupted is TaskTimedOut)
        return False

    def _tell(self, **message: str) -> None:
        with self._talk:
            self._untold.append(message)
            if self._listens:
                self._say_untold()

    def _tell_from_now_on(self) -> None:
        with self._talk:
            self._listens = True
            self._say_untold()

    def _say_untold(self) -> None:
        assert self._process is not None
        while self._untold:
            with suppress(OSError):  # It has ended.
                self._process.wire.send(**self._untold.pop(0))

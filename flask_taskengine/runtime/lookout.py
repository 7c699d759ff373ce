"""A process beside those that run tasks, which shows to the outside how they are; it reads memory that they write."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from ..signals import node_joined, node_left, node_lost
from .cells import Cells
from .desk import Desk
from .forked import exit_forked, forget_connections, fork, signal_when_parent_dies
from .heartbeat import Steadiness
from .host import Host
from .shared import SharedNumber

STALLS_AFTER = 30.0
"""Seconds without a turn after which a supervisor counts as hanging."""
_AGAIN_AFTER = 1.0

_logger = logging.getLogger("flask_taskengine")


@dataclass(slots=True)
class Sight:
    """What the lookout sees."""

    steadiness: Steadiness
    desks: list[Desk] = field(default_factory=list)
    turned: SharedNumber = field(default_factory=SharedNumber)
    """When the supervisor had its last turn, on the clock of ``time.monotonic``."""
    stopping: SharedNumber = field(default_factory=SharedNumber)
    """1 once the supervisor has been told to stop."""

    def live(self) -> bool:
        """Say whether the supervisor does its work."""
        return time.monotonic() - self.turned.value < STALLS_AFTER

    def ready(self) -> bool:
        """Say whether tasks are claimed: the database hears the heartbeats, and a process has a lease."""
        claims = any(desk.pid.value and desk.ready.value for desk in self.desks)
        return self.live() and not self.stopping.value and self.steadiness.since is not None and claims


class Show(Protocol):
    """What is shown, and how."""

    def enter(self, cells: Cells) -> None:
        """In a process that runs tasks, right after the fork: write here what is to be shown."""

    def serve(self, sight: Sight) -> None:
        """In the lookout's process: show what is seen, until it is killed."""

    def leave(self) -> None:
        """In a process that does not serve: close what belongs to the one that does."""


class Lookout:
    """The supervisor's view of it: who sits where, and when the process is to be forked anew.

    It is replaced when it has died, and when there is a desk that it does not see since it was forked before.
    """

    def __init__(self, host: Host, show: Show, steadiness: Steadiness) -> None:
        self._host = host
        self._show = show
        self._sight = Sight(steadiness)
        self._again_at = 0.0
        self._seen = 0
        self._note: Callable[..., None] | None = None
        self.pid = 0
        self.turn()

    # --- by the supervisor --------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When the process is to be forked, on the clock of ``time.monotonic``."""
        if self.pid:
            return 0.0 if self._seen < len(self._sight.desks) else float("inf")
        return self._again_at

    def turn(self) -> None:
        """Show that the supervisor does its work."""
        self._sight.turned.value = time.monotonic()

    def stop_claims(self) -> None:
        """Show that the worker is being stopped."""
        self._sight.stopping.value = 1.0

    def desk(self) -> Desk:
        """Return a desk for the next child."""
        for desk in self._sight.desks:
            if not desk.pid.value:
                return desk
        self._sight.desks.append(Desk())
        return self._sight.desks[-1]

    def start(self, disown: Callable[[], None]) -> None:
        """Fork the process anew.

        Args:
            disown: called in it, closes what belongs to the supervisor alone.

        Raises:
            OSError: the system has no room for another process.
        """
        self.end()
        self._seen = len(self._sight.desks)
        self._again_at = time.monotonic() + _AGAIN_AFTER
        supervisor = os.getpid()
        self.pid = fork(lambda: self._become(supervisor, disown))

    def died(self) -> None:
        """Take note that the process has died."""
        self.pid = 0
        self._again_at = time.monotonic() + _AGAIN_AFTER
        _logger.error("the process that answers probes has died, another starts in %g s", _AGAIN_AFTER)

    def end(self) -> None:
        """Kill the process."""
        if self.pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0

    # --- in other processes -------------------------------------------------------------------------------------------

    def enter(self, desk: Desk) -> None:
        """Sit down, in a child."""
        self._show.leave()
        desk.ready.value = 0.0
        desk.cells.begin()
        self._show.enter(desk.cells)
        desk.seated.value = 1.0

        def note(_: Any, **fields: Any) -> None:
            desk.ready.value = 1.0 if "concurrency" in fields else 0.0

        for one in (node_joined, node_left, node_lost):
            one.connect(note, self._host.sender)
        self._note = note

    def _become(self, supervisor: int, disown: Callable[[], None]) -> NoReturn:
        try:
            disown()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if signal_when_parent_dies(signal.SIGKILL, supervisor):
                forget_connections(self._host)
                self._show.serve(self._sight)
        except BaseException:
            _logger.exception("the process %d that answers probes failed", os.getpid())
        finally:
            exit_forked(1)

"""The process that a worker command is: it forks those that run tasks, beats for them, and buries them."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

from .birth import fork_child, prepare_to_fork
from .caretaker import Caretaker
from .channel import Channel
from .children import Child, Place
from .host import Host
from .inbox import STOPPING, Inbox
from .lookout import Lookout
from .process import Plan
from .relay import Relay

STOP_MARGIN = 20.0
"""Seconds beyond ``SHUTDOWN_TIMEOUT`` that a child has to record and to leave before it is killed."""
_LOOK = 1.0
_FORK_WITHIN = 1.0
_NO_FORK = 5.0
"""Seconds until the next try where the system has no room for another process."""
_TAKE_BACK_WITHIN = 5.0

_logger = logging.getLogger("flask_taskengine")


class Supervisor:
    """One thread that waits for its children, for signals and for the clock.

    All forks happen here, and only while this is the only thread and no connection is open: the caretaker is stopped before
    and started after. A child's death, a signal and a hang are seen at once whatever the database does.

    Args:
        inbox: installed already, for SIGCHLD and the signals that stop.
        what: the worker in words, for the line that it logs once it works.
    """

    def __init__(self, host: Host, plan: Plan, processes: int, inbox: Inbox, what: str) -> None:
        self._host = host
        self._plan = plan
        self._inbox = inbox
        self._what = what
        self._where = socket.gethostname()
        self._places = [Place() for _ in range(processes)]
        self._children: dict[int, Child] = {}
        self._lost: deque[str] = deque()
        self._caretaker = Caretaker(host, plan.options.label, self._note_lost)
        self._lookout = None if plan.show is None else Lookout(host, plan.show, self._caretaker.steadiness)
        self._relay = Relay(host, inbox.wake)
        self._selector = selectors.DefaultSelector()
        self._signals = 0
        self._kill_at = 0.0
        self._announced = False
        self._code = 0

    def run(self) -> int:
        """Work until told to stop, or until all children have drained; return the exit code."""
        self._selector.register(self._inbox, selectors.EVENT_READ)
        while self._children or any(place.due < float("inf") for place in self._places):
            self._turn()
        return self._finish()

    def _turn(self) -> None:
        now = time.monotonic()
        self._fork_due(now)
        for key, _ in self._selector.select(self._patience()):
            if isinstance(key.fileobj, Channel):
                self._hear(key.data)
        for number in self._inbox.take():
            if number in STOPPING:
                self._stop(signal.Signals(number))
        while self._lost:
            self._tell_lost(self._lost.popleft())
        self._relay.pass_on(place.child.channel for place in self._places if place.child is not None)
        if self._lookout is not None:
            self._lookout.turn()
        self._bury()
        self._look(time.monotonic())

    def _patience(self) -> float:
        due = min((place.due for place in self._places if place.child is None), default=float("inf"))
        if self._lookout is not None:
            due = min(due, self._lookout.due)
        return min(_LOOK, max(0.0, due - time.monotonic()))

    # --- birth --------------------------------------------------------------------------------------------------------

    def _fork_due(self, now: float) -> None:
        due = [place for place in self._places if place.child is None and place.due <= now]
        if not due and (self._lookout is None or self._lookout.due > now):
            return
        if not self._caretaker.stop(_FORK_WITHIN):
            # Stuck in connecting: a child could do nothing either.
            for place in due:
                place.due = now + 1.0
            return
        prepare_to_fork(self._host)
        for place in due:
            try:
                place.child = self._fork()
            except OSError as error:
                _logger.error("no process can be started, trying again in %g s: %s", _NO_FORK, error)  # noqa: TRY400 - no fault of the code
                place.due = now + _NO_FORK
        if self._lookout is not None and self._lookout.due <= now:
            with suppress(OSError):  # It tries again.
                self._lookout.start(self._disown)
        self._caretaker.start()

    def _fork(self) -> Child:
        begin, desk = [self._disown], None
        if self._lookout is not None:
            desk = self._lookout.desk()
            begin.append(partial(self._lookout.enter, desk))
        child = fork_child(self._host, self._plan, self._caretaker.steadiness, begin, desk)
        self._children[child.pid] = child
        self._selector.register(child.channel, selectors.EVENT_READ, child)
        return child

    def _disown(self) -> None:
        """In a child: close what belongs to the supervisor, above all its ends of the others' lines, whose end is to tell of its death."""
        self._host.tell_elsewhere = None
        self._selector.close()
        self._inbox.close()
        for child in self._children.values():
            child.close()

    # --- life ---------------------------------------------------------------------------------------------------------

    def _hear(self, child: Child) -> None:
        for message in child.hear():
            match message:
                case {"joined": node}:
                    self._caretaker.joined(node)
                case {"left": node}:
                    self._caretaker.left(node)
                case {"ready": mode}:
                    self._announce(child, mode)
                case {"retire": why, "tasks": tasks}:
                    self._retire(child, why, failed=tasks == 0)
                case _:
                    pass
        if child.channel.ended and child.channel in self._selector.get_map():
            self._selector.unregister(child.channel)

    def _announce(self, child: Child, mode: str) -> None:
        if not self._announced:
            self._announced = True
            _logger.info("%s; wake-ups by %s", self._what, mode)

    def _retire(self, child: Child, why: str, *, failed: bool) -> None:
        for place in self._places:
            if place.child is child:
                wait = place.vacate(time.monotonic(), failed=failed)
                _logger.info("process %d ends once its tasks have ended, another takes its place in %.1f s: %s", child.pid, wait, why)
                if self._signals:
                    place.close()

    def _note_lost(self, node: str) -> None:
        self._lost.append(node)
        self._inbox.wake()

    def _tell_lost(self, node: str) -> None:
        for child in self._children.values():
            if node in child.nodes:
                child.nodes.discard(node)
                child.channel.send(lost=node)

    def _look(self, now: float) -> None:
        for child in self._children.values():
            if (how := child.hangs(now)) is not None:
                child.kill(how)
            elif self._signals and now >= self._kill_at:
                child.kill("did not stop in time and was killed")

    # --- death --------------------------------------------------------------------------------------------------------

    def _bury(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._lookout is not None and pid == self._lookout.pid:
                self._lookout.died()
            # As process 1 of a container it gets strangers, too.
            child = self._children.pop(pid, None)
            if child is not None:
                self._ended(child, status)

    def _ended(self, child: Child, status: int) -> None:
        self._hear(child)
        if child.channel in self._selector.get_map():
            self._selector.unregister(child.channel)
        child.close()
        child.leave_desk()
        clean = status == 0 and child.why is None
        how = child.epitaph(status)
        for node in child.nodes:
            self._caretaker.died(node, f"the process {child.pid} on {self._where} that ran it {how}")
        said = self._fill(child, clean)
        if clean:
            _logger.info("process %d has ended%s", child.pid, said)
        else:
            _logger.error("process %d %s; its tasks are taken back%s", child.pid, how, said)

    def _fill(self, child: Child, clean: bool) -> str:
        """Decide whether another process is to be started, and say so."""
        for place in self._places:
            if place.child is child:
                wait = place.vacate(time.monotonic(), failed=not clean)
                if not self._signals and not (clean and self._plan.options.drain):
                    return f", another starts in {wait:.1f} s"
                place.close()
        return ""

    # --- the end ------------------------------------------------------------------------------------------------------

    def _stop(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._lookout is not None:
            self._lookout.stop_claims()
        for place in self._places:
            if place.child is None:
                place.close()
        match self._signals:
            case 1:
                patience = self._host.settings.shutdown_timeout
                self._tell_all(stop=True)
                _logger.info("%s: running tasks have %g s to end; a second signal interrupts them", number.name, patience)
                self._kill_at = time.monotonic() + patience + STOP_MARGIN
            case 2:
                self._tell_all(force=True)
                _logger.warning("%s again: running tasks are interrupted and released; a third signal kills", number.name)
                self._kill_at = time.monotonic() + STOP_MARGIN
            case _:
                self._code = 128 + number
                for child in self._children.values():
                    child.kill("was killed by the third signal to its supervisor")

    def _tell_all(self, **message: Any) -> None:
        for child in self._children.values():
            child.channel.send(**message)

    def _finish(self) -> int:
        """Take back what the last ones have left, if the database answers; other nodes do it after the lease."""
        end = time.monotonic() + _TAKE_BACK_WITHIN
        while self._caretaker.busy and self._signals < 3 and time.monotonic() < end:
            self._selector.select(0.05)
            self._signals += sum(number in STOPPING for number in self._inbox.take())
        self._caretaker.stop(1.0)
        if self._lookout is not None:
            self._lookout.end()
        self._relay.announce_here()
        self._host.reactions.settle(_TAKE_BACK_WITHIN)
        self._selector.close()
        _logger.info("the worker has ended")
        return self._code

"""The app's own functions that follow events, each called in a transaction of its own, apart from the task's."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from blinker import NamedSignal

from .. import signals
from ..domain.errors import ConfigError
from ..engine.handlers import place_of

if TYPE_CHECKING:
    from .host import Host

F = TypeVar("F", bound=Callable[..., Any])

MOST_WAITING = 10_000
"""Events that wait for their reactions; what comes beyond that is left out."""
_AT_EXIT = 5.0
"""Seconds that a process which ends gives to reactions that wait."""

_logger = logging.getLogger("flask_taskengine")


class Reactions:
    """Calls functions after events, one at a time, in a thread that lives while there are any.

    Each gets an app context and a session; its transaction commits when it returns. An error is logged and changes nothing else.
    A process that is killed loses what waits.
    """

    def __init__(self) -> None:
        self._functions: defaultdict[str, list[_Reaction]] = defaultdict(list)
        self._at_exit = False
        self._forget_threads()

    def add(self, signal: NamedSignal, function: Callable[..., Any]) -> None:
        """Call a function after each event of this signal, with those of its fields that it has parameters for.

        Raises:
            ConfigError: it has a parameter that the signal has no field for.
        """
        self._functions[signal.name].append(_Reaction(signal, function))

    def follow(self, name: str) -> bool:
        """Say whether any function follows this signal."""
        return name in self._functions

    def take(self, host: Host, name: str, fields: Mapping[str, Any]) -> None:
        """Call what follows an event, soon, in the thread of the reactions."""
        if name in self._functions:
            self._put([(host, reaction, fields) for reaction in self._functions[name]])

    def settle(self, timeout: float) -> bool:
        """Wait until nothing waits any more, at most ``timeout`` seconds; return whether that is so."""
        if self._pid != os.getpid():
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _forget_threads(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Host, _Reaction, Mapping[str, Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._full = False

    def _put(self, calls: list[tuple[Host, _Reaction, Mapping[str, Any]]]) -> None:
        if self._pid != os.getpid():
            # The thread, and whoever held the lock, stayed behind in the process that forked.
            self._forget_threads()
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                if not self._full:
                    _logger.error("%d events wait for reactions such as %r: later ones are left out", MOST_WAITING, calls[0][1])
                self._full = True
                return
            self._full = False
            self._waiting.extend(calls)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="taskengine-reactions", daemon=True)
                self._thread.start()
                if not self._at_exit:
                    self._at_exit = True
                    atexit.register(self.settle, _AT_EXIT)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = bool(self._waiting)
                if not self._busy:
                    self._thread = None
                    self._changed.notify_all()
                    return
                host, reaction, fields = self._waiting.popleft()
            reaction.call(host, fields)


class _Reaction:
    """One function that follows one signal."""

    def __init__(self, signal: NamedSignal, function: Callable[..., Any]) -> None:
        self._signal = signal
        self._function = function
        known = signals.declared[signal.name]
        parameters = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_POSITIONAL]
        self._all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        self._wanted = [one.name for one in parameters if one.name in known]
        needed = [one for one in parameters if one.kind is not one.VAR_KEYWORD and one.default is one.empty]
        strange = [one.name for one in needed if one.name not in known or one.kind is one.POSITIONAL_ONLY]
        if strange or inspect.iscoroutinefunction(function):
            fault = f"has the parameter {strange[0]!r}" if strange else "is a coroutine function"
            raise ConfigError(f"{self!r} {fault}: give a plain function that takes any of {', '.join(known)}, by name")

    def __repr__(self) -> str:
        return f"{self._signal.name} reaction {place_of(self._function)}"

    def call(self, host: Host, fields: Mapping[str, Any]) -> None:
        try:
            with host.app.app_context():
                given = fields if self._all else {name: fields[name] for name in self._wanted if name in fields}
                self._function(**given)
                host.database().session.commit()
        except BaseException:
            # Leaving the context has rolled back.
            _logger.exception("%r failed; what it did in the database is rolled back, the task is as it was", self)


class Decorator(Protocol):
    """Gives back the function that it is given."""

    def __call__(self, function: F, /) -> F: ...


class _On:
    def __init__(self, signal: NamedSignal) -> None:
        self._signal = signal

    def __get__(self, instance: ReactionDecorators, owner: type[ReactionDecorators]) -> Decorator:
        def follow(function: F, /) -> F:
            instance.reactions.add(self._signal, function)
            return function

        return follow


class ReactionDecorators:
    """The decorators ``on_...`` of the ``TaskEngine``: a function is called after each such event, in a transaction of its own.

    It takes those of the signal's fields that it wants, by their names.

    Example:
        >>> @engine.on_dead
        ... def tell_somebody(task_id, failure): ...
    """

    reactions: Reactions

    on_enqueued = _On(signals.task_enqueued)
    on_deduplicated = _On(signals.task_deduplicated)
    on_claimed = _On(signals.task_claimed)
    on_started = _On(signals.task_started)
    on_succeeded = _On(signals.task_succeeded)
    on_retried = _On(signals.task_retried)
    on_failed = _On(signals.task_failed)
    on_dead = _On(signals.task_dead)
    on_cancelled = _On(signals.task_cancelled)
    on_timed_out = _On(signals.task_timed_out)
    on_lease_lost = _On(signals.task_lease_lost)
    on_requeued = _On(signals.task_requeued)
    on_node_joined = _On(signals.node_joined)
    on_node_left = _On(signals.node_left)
    on_node_lost = _On(signals.node_lost)
    on_node_expired = _On(signals.node_expired)
    on_schedule_started = _On(signals.schedule_started)
    on_schedule_finished = _On(signals.schedule_finished)
    on_schedule_crashed = _On(signals.schedule_crashed)
    on_schedule_missed = _On(signals.schedule_missed)

"""What every process does that another has forked: not outlive it, leave its connections alone, and end without its stack."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from .host import Host

HELD_AT_FORK = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
"""Blocked while forking: one that came before the child has its own handlers would be lost in a copy of the supervisor's inbox."""
_PR_SET_PDEATHSIG = 1


def signal_when_parent_dies(number: int, parent: int) -> bool:
    """Have Linux send a signal when the parent dies; return false if it is dead already. Elsewhere closed lines have to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    return os.getppid() == parent


def forget_connections(host: Host) -> None:
    """Leave the connections that the app made before the fork to the process that made them."""
    with host.app.app_context():
        for engine in host.database().engines.values():
            engine.dispose(close=False)


def exit_forked(code: int) -> NoReturn:
    """End the process as ``sys.exit`` would, without unwinding what stood on the stack when it was forked."""
    with suppress(BaseException):
        # Temporary folders and the like belong to the process that made them.
        atexit.unregister(weakref.finalize._exitfunc)  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public name
        atexit._run_exitfuncs()  # noqa: SLF001 - as above: telemetry that the app has set up is flushed so
    flush()
    os._exit(code)


def fork(become: Callable[[], NoReturn]) -> int:
    """Fork a process that becomes something else, and return its id; it begins with the signals ``HELD_AT_FORK`` blocked.

    Raises:
        OSError: the system has no room for another process.
    """
    flush()
    # What exists now is never looked at by the collector, so that its pages stay shared.
    gc.collect()
    gc.freeze()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_AT_FORK)
    try:
        pid = os.fork()
        if pid == 0:
            become()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def flush() -> None:
    """Write what the standard streams hold, also before a fork, which would copy it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()

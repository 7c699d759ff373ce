"""What every process does that another has forked: not outlive it, leave its connections alone, and end without its stack."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import weakref
from contextlib import suppress
from typing import NoReturn

from .host import Host

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


def flush() -> None:
    """Write what the standard streams hold, also before a fork, which would copy it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()

"""How the supervisor forks a child: alone, with nothing open that both would use."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from .channel import Channel
from .children import Child, Vitals
from .forked import flush
from .heartbeat import Steadiness
from .host import Host
from .process import HELD_AT_FORK, Birth, Plan, become_child

_ALONE_WITHIN = 1.0


def prepare_to_fork(host: Host) -> None:
    """Close what the app has connected while it was made, and wait until the threads that have ended are gone.

    They are gone for Python at once, for the operating system a moment later, and Python warns of a fork beside them.
    """
    with host.app.app_context():
        for engine in host.database().engines.values():
            engine.dispose()
    end = time.monotonic() + _ALONE_WITHIN
    while _threads() > 1 and time.monotonic() < end:
        time.sleep(0.001)


def fork_child(host: Host, plan: Plan, steadiness: Steadiness, disown: Callable[[], None]) -> Child:
    """Fork a process that runs tasks.

    Args:
        disown: called in the child, closes what belongs to the supervisor alone.

    Raises:
        OSError: the system has no room for another process.
    """
    ours, theirs = Channel.pair()
    vitals = Vitals()
    flush()
    # What exists now is never looked at by the collector, so that its pages stay shared.
    gc.collect()
    gc.freeze()
    birth = Birth(channel=theirs, vitals=vitals, steadiness=steadiness, supervisor=os.getpid())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_AT_FORK)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for one in (ours, theirs, vitals):
            one.close()
        raise
    if pid == 0:
        become_child(host, plan, birth, (ours.close, disown))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return Child(pid, ours, vitals)


def _threads() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return 1

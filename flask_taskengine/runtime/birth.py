"""How the supervisor forks a child: alone, with nothing open that both would use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .channel import Channel
from .children import Child, Vitals
from .desk import Desk
from .forked import fork
from .heartbeat import Steadiness
from .host import Host
from .process import Birth, Plan, become_child

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


def fork_child(host: Host, plan: Plan, steadiness: Steadiness, begin: Iterable[Callable[[], None]], desk: Desk | None) -> Child:
    """Fork a process that runs tasks.

    Args:
        begin: called in the child: close what belongs to the supervisor alone, and sit down at the desk.

    Raises:
        OSError: the system has no room for another process.
    """
    ours, theirs = Channel.pair()
    vitals = Vitals()
    birth = Birth(channel=theirs, vitals=vitals, steadiness=steadiness, supervisor=os.getpid())
    try:
        pid = fork(lambda: become_child(host, plan, birth, (ours.close, *begin)))
    except OSError:
        for one in (ours, theirs, vitals):
            one.close()
        raise
    theirs.close()
    return Child(pid, ours, vitals, desk)


def _threads() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return 1

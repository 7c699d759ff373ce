"""A process without threads, forked before its worker has any, which forks the processes of isolated attempts.

A worker with threads must not fork them itself: the child would inherit locks that nobody is left to release. The zygote
has the app as the worker has it, runs none of its code and never connects to a database.
"""

from __future__ import annotations

import contextvars
import gc
import json
import os
import resource
import select
import signal
import socket
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

from .apart import KILL, SHOW
from .database import Database
from .forked import exit_forked, flush, forget_connections, signal_when_parent_dies
from .host import Host
from .isolated import SHOW_SIGNAL, run_attempt
from .isolation import Isolation, can_not_isolate, isolated_types
from .watchdog import Watchdog

_HANDED_OVER = 3
"""File descriptors that come with a start: the line, the leash and the pipe for the traceback."""
_HEEDLESS = (signal.SIGTERM, signal.SIGINT)
"""A whole process group gets these when the worker is to end, and the worker's tasks may use its grace period."""
_KILLED_SOONER = 300
"""Added to the out-of-memory score of an attempt, so that the system does not choose its worker."""


class _Closable(Protocol):
    def close(self) -> None: ...


def start_isolation(host: Host, only: Iterable[str] | None, not_its_own: Iterable[_Closable] = ()) -> Isolation | None:
    """Fork the zygote if one of the types needs it; call this before the process starts its first thread.

    Args:
        only: the types that this worker processes; None for all.
        not_its_own: what this process has opened, for the zygote to close.

    Raises:
        ConfigError: this process has threads.
    """
    types = isolated_types(host, only)
    if not types:
        return None
    if _threads() > 1:
        raise can_not_isolate(types)
    ours, theirs = socket.socketpair()
    worker = os.getpid()
    flush()
    pid = os.fork()
    if pid == 0:
        _become_zygote(host, theirs, worker, (ours, *not_its_own))
    theirs.close()
    return Isolation(pid, ours, host.settings.isolation_memory)


def _become_zygote(host: Host, control: socket.socket, worker: int, not_its_own: Iterable[_Closable]) -> NoReturn:
    """Live the whole life of the zygote; nothing of the stack that it has inherited may go on."""
    try:
        forget_connections(host)
        zygote = _Zygote(host, control, worker)
        zygote.set_signals()
        for one in not_its_own:
            one.close()
        zygote.serve()
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        os._exit(0)


def _threads() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return threading.active_count()


class _Zygote:
    """Forks, kills and buries; one thread, one loop."""

    def __init__(self, host: Host, control: socket.socket, worker: int) -> None:
        self._database = Database(host, Watchdog())
        self._control = control
        self._worker = worker
        self._me = os.getpid()
        self._leashes: dict[int, socket.socket] = {}
        """By process id."""
        self._poll = select.poll()
        self._woken, self._waker = socket.socketpair()

    def serve(self) -> None:
        """Work until the worker closes its end or dies."""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        gc.collect()
        gc.freeze()  # So that no collection in a child touches, and thereby copies, what it has inherited.
        for end in (self._control, self._woken):
            self._poll.register(end.fileno(), select.POLLIN)
        if signal_when_parent_dies(signal.SIGHUP, self._worker):
            while self._work():
                pass
        for pid in self._leashes:
            _kill_all(pid)
        while self._leashes:
            self._bury(*os.wait4(-1, 0))

    def _work(self) -> bool:
        ready = {fd for fd, _ in self._poll.poll()}
        for pid, leash in self._leashes.items():
            if leash.fileno() in ready:
                self._heed(pid, leash)
        if self._woken.fileno() in ready:
            self._woken.recv(4096)
            self._bury_dead()
        if os.getppid() != self._worker:
            return False
        return self._control.fileno() not in ready or self._start()

    def set_signals(self) -> None:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        for number in (*_HEEDLESS, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, _nothing)
        for end in (self._woken, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    # --- one process --------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Fork a process as the worker asks; return false where the worker has closed its end."""
        asked, handed_over, _, _ = socket.recv_fds(self._control, 1, _HANDED_OVER, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        if not asked:
            return False
        if len(handed_over) < _HANDED_OVER:  # There is no room for more: the worker sees the leash cut.
            for one in handed_over:
                os.close(one)
            return True
        line, leash, trace = handed_over
        held = socket.socket(fileno=leash)
        try:
            pid = os.fork()
        except OSError as error:
            _say(held, refused=str(error))
            held.close()
        else:
            if pid == 0:
                self._become_attempt(line, held, trace)
            _lead_a_group(pid)
            self._leashes[pid] = held
            self._poll.register(leash, select.POLLIN)
        os.close(line)
        os.close(trace)
        return True

    def _heed(self, pid: int, leash: socket.socket) -> None:
        """Do to a process what the worker says; a leash that is cut says to kill it."""
        try:
            word = leash.recv(1)
        except OSError:
            word = b""
        if word == SHOW:
            os.kill(pid, SHOW_SIGNAL)
            return
        _kill_all(pid)
        if word != KILL:
            self._poll.unregister(leash.fileno())

    def _bury_dead(self) -> None:
        with suppress(ChildProcessError):
            while (dead := os.wait4(-1, os.WNOHANG))[0]:
                self._bury(*dead)

    def _bury(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        leash = self._leashes.pop(pid, None)
        if leash is None:
            return
        if status != 0:
            _kill_all(pid)  # What it has started, and can not end any more.
        with suppress(KeyError):
            self._poll.unregister(leash.fileno())
        _say(leash, status=status, peak=usage.ru_maxrss // 1024)
        leash.close()

    # --- in the new process -------------------------------------------------------------------------------------------

    def _become_attempt(self, line: int, leash: socket.socket, trace: int) -> NoReturn:
        code = 1
        try:
            _lead_a_group(0)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for inherited in (self._control, self._woken, self._waker, leash, *self._leashes.values()):
                inherited.close()
            os.register_at_fork(after_in_child=_heed_signals)
            _volunteer()
            if signal_when_parent_dies(signal.SIGKILL, self._me):
                contextvars.Context().run(run_attempt, self._database, socket.socket(fileno=line), trace)
                code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            exit_forked(code)


def _nothing(*_: object) -> None:
    """Not SIG_IGN, which the programs that a task starts would inherit."""


def _heed_signals() -> None:
    for number in _HEEDLESS:
        signal.signal(number, signal.SIG_DFL)


def _lead_a_group(pid: int) -> None:
    with suppress(OSError):
        os.setpgid(pid, pid)


def _kill_all(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _say(leash: socket.socket, **told: object) -> None:
    with suppress(OSError):
        leash.sendall(json.dumps(told).encode())


def _volunteer() -> None:
    """Let the system, when it runs out of memory, choose this process before its worker."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + _KILLED_SOONER)))

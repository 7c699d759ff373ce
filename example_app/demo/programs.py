"""The programs that the demo runs. Whatever happens, none of them is left behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
GRACE = 35.0
"""Seconds that the programs have to stop: a little more than the worker gives its tasks."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_EVERY = 0.05


class DemoFailed(Exception):
    """The demo can not go on; the message says why."""


class Interrupted(Exception):
    """Somebody pressed Ctrl-C, or asked the demo to end in another way."""


class Program:
    """A ``flask --app example_app …``.

    It has a session of its own, so that a Ctrl-C in the terminal reaches the demo alone, which then stops its programs.
    """

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str], log: Path | None) -> None:
        self.name = " ".join(("flask", *arguments))
        self._log = log
        with contextlib.ExitStack() as stack:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "flask", "--app", "example_app", *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context(log.open("wb")) if log else None,
                stderr=subprocess.STDOUT if log else None,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    @property
    def printed(self) -> str:
        """What it has printed into its log."""
        return self._log.read_text(errors="replace") if self._log else ""

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it and all that it has started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Programs:
    """Runs programs until the end of the ``with`` block, or until a signal asks for it.

    Args:
        env: environment variables of all programs, over those of the demo.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._running: list[Program] = []
        self._signals = 0
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Only noted: an exception at any point could come between the start of a program and the note that it runs.
        self._handlers = {number: signal.signal(number, self._note_signal) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(self, *arguments: str, log: Path | None = None) -> Program:
        """Start a program that is to run until the end.

        Args:
            arguments: what follows ``flask --app example_app``.
            log: gets what it prints; by default that is printed here.
        """
        program = Program(arguments, self._env, log)
        self._running.append(program)
        return program

    def run(self, *arguments: str, log: Path) -> None:
        """Run a program that ends by itself.

        Raises:
            DemoFailed: its exit code is not 0.
        """
        program = Program(arguments, self._env, log)
        try:
            while program.exit_code is None:
                self._pause(_LOOK_EVERY)
        finally:
            program.kill()
        if program.exit_code != 0:
            raise DemoFailed(f"{program.name} failed:\n{program.printed}")

    def wait_for_line(self, program: Program, pattern: str, timeout: float) -> re.Match[str]:
        """Wait until a program has printed a line that matches.

        Raises:
            DemoFailed: the time is over, or a program has ended.
        """
        end = time.monotonic() + timeout
        while not (match := re.search(pattern, program.printed, re.MULTILINE)):
            if time.monotonic() > end:
                raise DemoFailed(f"{program.name} did not print {pattern!r} within {timeout:g} s, but:\n{program.printed}")
            self.wait(_LOOK_EVERY)
        return match

    def wait(self, seconds: float) -> None:
        """Wait while all programs run.

        Raises:
            DemoFailed: a program has ended.
            Interrupted: a signal has come.
        """
        self._pause(seconds)
        for program in self._running:
            if program.exit_code is not None:
                raise DemoFailed(f"{program.name} has ended with exit code {program.exit_code}.\n{program.printed}")

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._signals and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_EVERY))
        if self._signals:
            raise Interrupted

    def _stop(self) -> None:
        """Ask the programs to end; after ``GRACE`` seconds, or at a second signal, end them."""
        for program in self._running:
            program.terminate()
        end, signals = time.monotonic() + GRACE, self._signals
        while any(program.exit_code is None for program in self._running) and time.monotonic() < end and self._signals == signals:
            time.sleep(_LOOK_EVERY)
        for program in self._running:
            program.kill()

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

"""Worker processes as a deployment starts them, with their log in a file."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import psutil

from .waiting import wait_until

ROOT = Path(__file__).parents[2]
_LAUNCH = Path(__file__).with_name("launch.py")
_HIDDEN = ("FLASK_", "PG", "TASKENGINE_")


class StartWorker(Protocol):
    """What the fixture ``start_worker`` returns."""

    def __call__(self, app: str, *options: str, url: str | None = None, env: Mapping[str, str] | None = None) -> WorkerProcess: ...


class Process:
    """A program that runs in a session of its own, and is killed when the test run is.

    It finds the modules of the repository, and the project's entry points.

    Args:
        command: the program and its arguments.
        log: the file that gets what it prints; its folder is where the program runs.
        env: environment variables, over the test run's; what an app reads with ``from_prefixed_env`` begins with ``FLASK_``.
    """

    def __init__(self, *command: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log_path = log
        tied = [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), str(int(signal.SIGKILL)), "-", "-"]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*tied, *command],
                cwd=log.parent,
                env=environment(log.parent) | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process's id, which is its session's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; the negative number of a signal that ended it; ``None`` while it runs."""
        return self._process.poll()

    @property
    def log(self) -> str:
        """All that the process has printed."""
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, pattern: str, timeout: float = 20) -> re.Match[str]:
        """Wait until a line matches the regular expression.

        Raises:
            AssertionError: the deadline has passed, or the process ended without saying it.
        """

        def found() -> re.Match[str] | bool | None:
            ended = self.exit_code is not None
            return re.search(pattern, self.log, re.MULTILINE) or ended

        match = wait_until(found, timeout, lambda: f"the log to say {pattern!r}; it says:\n{self.log}")
        if not isinstance(match, re.Match):
            raise AssertionError(f"the process ended with exit code {self.exit_code} and never logged {pattern!r}, but:\n{self.log}")
        return match

    def wait(self, timeout: float = 30) -> int:
        """Wait until the process has ended, and return its exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process still runs after {timeout:g} s; its log:\n{self.log}") from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, not to its children."""
        self._process.send_signal(number)

    def terminate(self, number: signal.Signals = signal.SIGTERM, timeout: float = 30) -> int:
        """Send a signal, wait until the process has ended, and return its exit code."""
        self.send(number)
        return self.wait(timeout)

    def kill(self) -> None:
        """Kill every process of the session at once, as a machine that fails does."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(10)

    def processes(self) -> list[psutil.Process]:
        """Return the running processes of the session: the process itself and what it started."""
        return [process for process in psutil.process_iter() if _session(process.pid) == self.pid]


class WorkerProcess(Process):
    """A ``flask taskengine worker`` of the app ``"package.module:create_app"``."""

    def __init__(self, app: str, *options: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(sys.executable, "-m", "flask", "--app", app, "taskengine", "worker", *options, log=log, env=env)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def environment(folder: Path) -> dict[str, str]:
    """Return the variables for a program that finds the repository's modules and entry points, and nothing of the caller's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    path = [str(ROOT), *_entry_points(folder), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def _entry_points(folder: Path) -> list[str]:
    """Make the project's entry points known to a Python in which the project is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution("flask-taskengine")
        return []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "installed" / f"flask_taskengine-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    text = "".join(f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items()) for group, points in groups)
    (info / "entry_points.txt").write_text(text)
    return [str(info.parent)]

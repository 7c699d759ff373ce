"""Run the real ``flask`` and look at what it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .worker import environment


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program has answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on the standard output."""
        return json.loads(self.out)


class RunFlask(Protocol):
    """What the fixture ``flask`` returns."""

    def __call__(self, *arguments: str, url: str | None = None, app: str = ..., stdin: str = "", **env: str) -> Answer: ...


def run_flask(*arguments: str, app: str, folder: Path, env: Mapping[str, str], stdin: str = "") -> Answer:
    """Run ``flask --app APP ARGUMENTS`` until it ends."""
    ran = subprocess.run(
        [sys.executable, "-m", "flask", "--app", app, *arguments],
        cwd=folder,
        env=environment(folder) | dict(env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return Answer(ran.returncode, ran.stdout, ran.stderr)

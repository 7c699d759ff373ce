"""Follows a page of the docs: writes the files that it shows and types its commands."""

from __future__ import annotations

import re
import shlex
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from .documents import Block
from .worker import Process

_ADDRESS = "http://127.0.0.1:5000"
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Terminal:
    """Runs the commands of a page in one folder, as a reader would who follows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = _ADDRESS
        self._programs: list[Process] = []

    def run(self, block: Block) -> None:
        """Write the file that a block shows, or run its commands and compare what they print."""
        if block.title:
            (self.folder / block.title).write_text(block.text)
        elif block.language == "console":
            for command, expected in _commands(block.text):
                printed = self._printed_by(shlex.split(command))
                assert re.search(_pattern(expected), printed), f"{block.place}: `{command}` printed\n{printed}\nnot\n{expected}"

    def close(self) -> None:
        """End what still runs."""
        for program in self._programs:
            program.kill()

    def _printed_by(self, command: list[str]) -> str:
        match command:
            case ["flask", "run"]:
                # Any free port, in place of the one that the reader's machine has free.
                program = self._start("run", "--port", "0")
                self.address = program.wait_for_log(r"Running on (http://\S+)")[1]
                return program.log
            case ["flask", *arguments]:
                program = self._start(*arguments)
                assert program.wait(60) == 0, program.log
                return program.log
            case ["curl", "-d", form, url]:
                data = urllib.parse.urlencode(urllib.parse.parse_qsl(form)).encode()
                with _NO_PROXY.open(url.replace(_ADDRESS, self.address), data, timeout=30) as answer:
                    return str(answer.read().decode())
            case _:
                raise AssertionError(f"this test can not run {shlex.join(command)}: teach it")

    def _start(self, *arguments: str) -> Process:
        log = self.folder / f"{len(self._programs)}.log"
        self._programs.append(program := Process(sys.executable, "-m", "flask", *arguments, log=log))
        return program


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block with what stands below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def _pattern(expected: str) -> str:
    """Return a regular expression for what a command prints: ``…`` stands for anything, on a line of its own for any lines."""
    joined = re.sub(r"^…\n|\n…$", "…", expected.strip(), flags=re.MULTILINE)
    return "(?s)" + ".*".join(re.escape(part) for part in joined.split("…"))

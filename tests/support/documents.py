"""The README and the docs, read as tests need them: their code blocks, their links, and the parts that are generated.

``python -m tests.support.documents`` writes the generated parts anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click

from flask_taskengine import settings, signals
from flask_taskengine.cli import taskengine
from flask_taskengine.telemetry import names

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^( *)```(\w*) *([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One code block."""

    path: Path
    line: int
    language: str
    options: str
    """What follows the language, such as ``title="app.py"``."""
    text: str

    @property
    def title(self) -> str | None:
        """The name of the file that it shows."""
        found = re.search(r'title="([^"]+)"', self.options)
        return found[1] if found else None

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(path: Path, section: str | None = None) -> list[Block]:
    """Return the code blocks of a document, or of its section with this heading of the second level."""
    text = path.read_text()
    start, end = 0, len(text)
    if section is not None:
        start = text.index(f"\n## {section}\n")
        found = re.compile(r"^## ", re.MULTILINE).search(text, start + 4)
        end = found.start() if found else end
    return [
        Block(path, text.count("\n", 0, match.start()) + 1, match[2], match[3], match[4]) for match in _FENCE.finditer(text, start, end)
    ]


def links(path: Path) -> list[str]:
    """Return the targets of a document's links that lead into the repository."""
    text = _FENCE.sub("", path.read_text())
    return [target for target in _LINK.findall(text) if "://" not in target and not target.startswith("mailto:")]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    text = _FENCE.sub("", path.read_text())
    plain = (re.sub(r"[`*]", "", heading).lower() for heading in _HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


# --- the generated parts -------------------------------------------------------------------------------------------------


def generated() -> dict[str, str]:
    """Return what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, by name."""
    own = {"settings": settings.reference(), "commands": commands(), "proofs": proofs(), "signals": signals.reference()}
    return own | names.reference()


def part(text: str, name: str) -> re.Match[str] | None:
    """Find a generated part in a document."""
    return re.search(rf"<!-- begin {name} -->\n(.*?)<!-- end {name} -->", text, re.DOTALL)


def commands() -> str:
    """Describe every command and its options, as ``--help`` does."""
    return "".join(_command(name, command) for name, command in sorted(_commands(taskengine)))


def _commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name, auto_envvar_prefix=f"TASKENGINE_{re.sub(r'[ -]', '_', name.upper())}")
    arguments = " ".join(one.make_metavar(context) for one in command.params if isinstance(one, click.Argument))
    lines = [f"### `flask taskengine {' '.join(filter(None, [name, arguments]))}`", "", _told(command.help or ""), ""]
    options = [record for one in command.params if isinstance(one, click.Option) and (record := one.get_help_record(context))]
    if options:
        lines += ["| option | meaning |", "|---|---|", *(f"| `{_cell(option)}` | {_cell(meaning)} |" for option, meaning in options), ""]
    return "\n".join(lines) + "\n"


def _told(text: str) -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    return "\n\n".join(re.sub(r"^Example: (.+)$", r"Example: `\1`", paragraph) for paragraph in paragraphs)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def write_generated_parts() -> None:
    """Write every generated part of every document anew."""
    for path in DOCUMENTS:
        text = path.read_text()
        for name, content in generated().items():
            if match := part(text, name):
                text = text[: match.start(1)] + content + text[match.end(1) :]
        path.write_text(text)


# --- the requirements, and the tests that carry their numbers ---------------------------------------------------------------

REQUIREMENTS = {
    "R0": "A task is enqueued in the caller's transaction: a rollback leaves no phantom task",
    "R1": "Tasks are persisted, with a JSONB payload on PostgreSQL; the tables come by migration or as DDL",
    "R2": "Pluggable processors, found by task type",
    "R3": "The trace is stored with a task and restored for its run",
    "R4": "Any number of workers; each task is claimed by exactly one node",
    "R5": "Metrics",
    "R6": "Retry with backoff; a task whose attempts are exhausted is DEAD",
    "R6b": "A task that is inserted by hand in SQL is run",
    "R7": "Tracing and metrics are optional",
    "R8": "Unknown task types fail safely",
    "R9": "Health and information",
    "R10": "Each task runs in a transaction of its own",
    "R11": "Low latency: a wake-up in milliseconds, the poll as a safety net",
    "R12": "Crash recovery: the reaper requeues orphaned tasks",
    "R13": "Managing tasks: retry, cancel and delete, by code, by command and by REST",
    "R14": "Priorities",
    "R15": "Limits per node and cluster-wide",
    "R16": "Idempotency keys",
    "R17": "The delivery guarantees are documented",
    "R18": "Delayed and scheduled execution",
    "R19": "Recurring schedules",
    "R20": "A view of dead tasks beyond REST",
    "R21": "Retry policy per type",
    "R22": "Timeout per task type",
    "R23": "Results are kept",
    "R24": "Events of a task's life",
    "R25": "Typed payloads",
    "R26": "History: ended tasks are deleted or archived",
    "R27": "Pause and resume",
    "R29": "A limit to the size of payloads",
}

UNNUMBERED = {
    "R2": ["tests/unit/test_registry.py::test_a_processor_is_found_by_its_type"],
    "R21": ["tests/unit/test_settings_precedence.py::test_the_retry_policy_is_merged_key_by_key"],
    "R24": ["tests/unit/test_signals.py::test_receivers_get_the_sender_and_the_fields"],
    "R25": ["tests/unit/test_payload_typed.py::test_every_documented_type_comes_back_equal"],
    "R29": ["tests/conformance/test_r01_enqueue.py::test_r01_the_limit_of_a_payload_is_a_setting"],
}
"""Tests that prove a requirement without carrying its number, or carry that of another."""

PLANNED: set[str] = set()
"""What is not built yet."""


def proofs() -> str:
    """Return the table of the requirements, each with the first of its tests in every file that has some."""
    found = proving_tests()
    lines = ["| | requirement | proven by |", "|---|---|---|"]
    for number, words in REQUIREMENTS.items():
        first = {path: name for name, path in reversed(found.get(number, {}).items())}
        tests = [f"[`{name}`]({path.relative_to(ROOT)})" for path, name in sorted(first.items())]
        lines.append(f"| {number} | {words} | {'<br>'.join(tests) or ('planned' if number in PLANNED else 'no proof yet')} |")
    return "\n".join(lines) + "\n"


@cache
def proving_tests() -> dict[str, dict[str, Path]]:
    """Return the tests of each requirement, by name, with their files."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in _functions(path):
            if match := re.match(r"test_r(\d\d?)(b?)_", name):
                found.setdefault(f"R{int(match[1])}{match[2]}", {})[name] = path
    for number, places in UNNUMBERED.items():
        for file, _, name in (place.partition("::") for place in places):
            if name in _functions(ROOT / file):
                found.setdefault(number, {})[name] = ROOT / file
    return found


def _functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node.name


if __name__ == "__main__":
    write_generated_parts()

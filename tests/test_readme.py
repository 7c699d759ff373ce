"""The README says what is true: its quickstart runs, its tables are those of the code, and its proofs exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .support.documents import README, blocks, proving_tests
from .support.terminal import Terminal

_ROW = re.compile(r"^\| (R\d+b?) \| (.+?) \| (.+) \|$", re.MULTILINE)
_NAMED = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")


# --- the quickstart ------------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Give a terminal in an empty folder."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


@pytest.mark.timeout(180)
def test_the_quickstart_runs(terminal: Terminal) -> None:
    """Who copies the file and types the commands sees what the README says: from nothing to a task that has SUCCEEDED."""
    followed = blocks(README, "Quickstart")
    assert [block.title for block in followed if block.title] == ["app.py"]
    for block in followed:
        terminal.run(block)


# --- the requirements ----------------------------------------------------------------------------------------------------


def _rows() -> dict[str, str]:
    return {number: proof for number, _, proof in _ROW.findall(README.read_text())}


@pytest.mark.parametrize("number", _rows())
def test_each_requirement_names_its_proofs(number: str) -> None:
    """What is named exists under this number; what is proven is not called planned, and what is not proven is."""
    proof = _rows()[number]
    existing = proving_tests().get(number, {})
    named = {name: README.parent / path for name, path in _NAMED.findall(proof)}
    for name, path in named.items():
        assert existing.get(name) == path, f"{number} names {name} in {path}: there is no such test"
    assert bool(named) == bool(existing), f"{number} says {proof!r}; its tests are: {', '.join(existing) or 'none'}"
    assert named or proof == "planned"


def test_every_proof_belongs_to_a_requirement() -> None:
    """No test carries a number that the README does not know."""
    assert proving_tests().keys() <= _rows().keys()


def test_r17_the_delivery_guarantees_are_documented() -> None:
    """The README says what is exactly once, what is at least once, and what a processor must do about it."""
    text = README.read_text()
    section = text[text.index("## Delivery guarantees") : text.index("\n## Enqueue")]
    for word in ("at least once", "exactly once", "What a processor must do", "context.token", "idempotency_key", "lease_lost"):
        assert word in section

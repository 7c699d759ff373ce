"""The README says what is true: its quickstart runs, its tables are those of the code, and its proofs exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .support.documents import README, blocks, proving_tests
from .support.terminal import Terminal

_ROW = re.compile(r"^\| (R\d+b?) \| .+? \| (.+) \|$", re.MULTILINE)
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


def test_every_named_proof_exists() -> None:
    """A test that the README names is there, in the file that it links to, under the number of its row."""
    proving = proving_tests()
    for number, proof in _ROW.findall(README.read_text()):
        for name, path in _NAMED.findall(proof):
            assert proving[number][name] == README.parent / path


def test_every_proof_is_of_a_requirement() -> None:
    """No test carries a number that the README does not know; what has no test is said to have none, and only that."""
    proofs = dict(_ROW.findall(README.read_text()))
    assert proving_tests().keys() == {number for number, proof in proofs.items() if _NAMED.search(proof)}
    assert {proof for proof in proofs.values() if not _NAMED.search(proof)} <= {"planned", "no proof yet"}


def test_r17_the_delivery_guarantees_are_documented() -> None:
    """The README says what is exactly once, what is at least once, and what a processor must do about it."""
    text = README.read_text()
    section = text[text.index("## Delivery guarantees") : text.index("\n## Enqueue")]
    for word in ("at least once", "exactly once", "What a processor must do", "context.token", "idempotency_key", "lease_lost"):
        assert word in section

"""The list of other queues' faults is whole, and the tests that it names exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from .support.documents import ROOT

LIST = ROOT / "tests" / "faults.md"
_ROW = re.compile(r"^\| (P?\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_TOLD = re.compile(r"\(faults ((?:P?\d+(?:, )?)+)\)")


def _rows() -> list[tuple[str, str, str]]:
    return _ROW.findall(LIST.read_text())


@cache
def _tests_of(path: Path) -> dict[str, str]:
    """Return the docstrings of a module's tests, by name."""
    body = ast.parse(path.read_text()).body
    return {
        node.name: ast.get_docstring(node) or "" for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize(("prefix", "last"), [("", 128), ("P", 154)])
def test_every_number_has_one_row(prefix: str, last: int) -> None:
    """In order, and none twice."""
    given = [number for number, _, _ in _rows() if number.startswith("P") == bool(prefix)]
    assert given == [f"{prefix}{number}" for number in range(1, last + 1) if number % 3]


def test_every_row_names_a_test_a_reason_or_what_is_open() -> None:
    """A row without a test says why it needs none, and what is open says what is missing."""
    for number, _, how in _rows():
        open_, named = how.startswith("open: "), _NAMED.search(how)
        assert named or (open_ and len(how) > len("open: ")) or how.endswith("."), number


def test_every_named_test_exists() -> None:
    """Each name is that of a test in the module that stands before it."""
    for number, _, how in _rows():
        for place, name in _NAMED.findall(how):
            assert name in _tests_of(ROOT / place), f"{number} names {place}::{name}"


def test_what_a_docstring_says_stands_in_the_list() -> None:
    """A test that says which faults it is about is named in their rows."""
    named = {number: {name for _, name in _NAMED.findall(how)} for number, _, how in _rows()}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, text in _tests_of(path).items():
            for numbers in _TOLD.findall(text):
                assert all(name in named.get(number, ()) for number in numbers.split(", ")), f"{path.name}::{name} says {numbers}"

"""The documents hold together: their code runs, their links lead somewhere, and what is generated is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .support.documents import DOCUMENTS, README, ROOT, Block, anchors, blocks, generated, links, part
from .support.hosts import Host, MakeApp
from .support.terminal import Terminal

WORDS = """
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from flask_taskengine import *
"""
"""What every block of a document may use without saying where it comes from, beside ``app``, ``db`` and ``engine``."""


def _place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _python(path: Path) -> list[Block]:
    return [block for block in blocks(path) if block.language == "python"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=_place)
def test_python_compiles(path: Path) -> None:
    """Every block of Python is Python."""
    for block in _python(path):
        compile(block.text, block.place, "exec")


@pytest.fixture
def page(make_app: MakeApp, sqlite_url: str) -> Iterator[ModuleType]:
    """Give a module in which the blocks of a page run one after the other, inside the context of an app."""
    host: Host = make_app(sqlite_url)
    module = ModuleType("page")
    vars(module).update(app=host.app, db=host.db, engine=host.engine)
    sys.modules["page"] = module
    exec(WORDS, vars(module))
    with host.app.app_context():
        yield module
        host.db.session.rollback()
    del sys.modules["page"]


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if _python(path)], ids=_place)
def test_python_runs(path: Path, page: ModuleType) -> None:
    """Every block of Python runs after those before it; whole files and what is marked ``no-run`` stand for themselves."""
    for block in _python(path):
        if block.title is None and "no-run" not in block.options:
            namespace: dict[str, Any] = vars(page)
            exec(compile(block.text, block.place, "exec"), namespace)


@pytest.mark.timeout(180)
def test_the_tutorial_runs(tmp_path: Path) -> None:
    """Who follows the tutorial step by step sees what it says."""
    terminal = Terminal(tmp_path)
    try:
        for block in blocks(ROOT / "docs" / "tutorial.md"):
            terminal.run(block)
    finally:
        terminal.close()


@pytest.mark.parametrize("path", DOCUMENTS, ids=_place)
def test_links_lead_somewhere(path: Path) -> None:
    """Every link into the repository leads to a file, and to a heading where it names one."""
    for target in links(path):
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), f"{_place(path)} links to {target}"
        assert not anchor or anchor in anchors(place), f"{_place(path)} links to {target}; there are {sorted(anchors(place))}"


def test_every_page_is_in_the_index() -> None:
    """A page that nobody finds helps nobody."""
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert {path for path in DOCUMENTS if path not in (README, index)} <= linked


@pytest.mark.parametrize("name", sorted(generated()))
def test_generated_parts_are_up_to_date(name: str) -> None:
    """What is generated from the code stands in a document, as it is now."""
    found = [(path, match) for path in DOCUMENTS if (match := part(path.read_text(), name))]
    assert found
    for path, match in found:
        assert match[1] == generated()[name], f"{_place(path)}: write it anew with `python -m tests.support.documents`"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_place)
def test_the_words_are_those_of_the_project(path: Path) -> None:
    """A task is called a task."""
    assert " job" not in path.read_text().lower()

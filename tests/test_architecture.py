"""The floors and the house rules, held up by tests."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flask_taskengine"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_MODULE = 400

PUBLIC_NAMES = {
    "ConfigError",
    "DuplicateTypeError",
    "Enqueued",
    "Explanation",
    "InvalidArgument",
    "KeyBusyError",
    "LeaseLostError",
    "Limits",
    "PayloadError",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskEngine",
    "TaskEngineError",
    "TaskInterrupt",
    "TaskNotFound",
    "TaskProcessor",
    "TaskStateError",
    "TaskStatus",
    "TaskTimedOut",
    "current_task",
}
NAMES_OF_SCHEDULES = {
    "Backoff",
    "Cron",
    "Dynamic",
    "FixedDelay",
    "FixedRate",
    "Schedule",
    "ScheduleConflict",
    "ScheduleContext",
    "ScheduleNotFound",
}


def _place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_only_go_down() -> None:
    """The import contracts in pyproject.toml hold."""
    ended = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("path", MODULES, ids=_place)
def test_modules_stay_short(path: Path) -> None:
    """No module grows beyond what a reader can hold; split it by role, not by size."""
    lines = len(path.read_text().splitlines())
    assert lines <= LONGEST_MODULE, f"{_place(path)} has {lines} lines"


@pytest.mark.parametrize("path", sorted((PACKAGE / "domain").rglob("*.py")), ids=_place)
def test_domain_needs_the_standard_library_only(path: Path) -> None:
    """The domain imports itself and the standard library."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                roots = {alias.name.split(".")[0] for alias in names}
                assert roots <= sys.stdlib_module_names
            case ast.ImportFrom(module=module, level=0):
                assert module is not None
                assert module.split(".")[0] in sys.stdlib_module_names
            case ast.ImportFrom(level=level):
                assert level == 1, "a relative import leaves the domain"
            case _:
                pass


@pytest.mark.parametrize("path", MODULES, ids=_place)
def test_only_the_store_asks_which_database_it_is(path: Path) -> None:
    """Outside the dialects and the column types, code asks for a capability and never for the name of a database."""
    if path.parent.name == "dialects" or path == PACKAGE / "store" / "types.py":
        return
    asked = re.findall(r".*\bdialect(?:\.name|_name)?\s*(?:==|!=|in\b).*", path.read_text())
    assert not asked, f"{_place(path)}: {asked}"


@pytest.mark.parametrize("path", MODULES, ids=_place)
def test_a_task_is_called_a_task(path: Path) -> None:
    """The unit of work has one name in the whole package."""
    assert not re.search(r"(?<![a-z])jobs?(?![a-z])", path.read_text(), re.IGNORECASE)


def test_the_public_names_are_pinned() -> None:
    """What users may import is decided here; everything else may change at any time."""
    package = importlib.import_module("flask_taskengine")
    exported = getattr(package, "__all__", None)
    if exported is None:
        return
    assert set(exported) - NAMES_OF_SCHEDULES == PUBLIC_NAMES
    assert list(exported) == sorted(exported, key=str.lower) or list(exported) == sorted(exported), "keep __all__ sorted"
    for name in exported:
        assert hasattr(package, name), f"__all__ lists {name}, which does not exist"

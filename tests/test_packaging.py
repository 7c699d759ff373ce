"""What a user installs."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the source distribution from the working copy."""
    folder = tmp_path_factory.mktemp("dist")
    ended = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def test_the_wheel_has_all_that_runs(built: Path) -> None:
    """The wheel carries every module, its types, the migration scripts, the licence and the command."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        entry_points = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "flask_taskengine").rglob("*.py")} <= names
    assert "flask_taskengine/py.typed" in names
    scripts = {f"flask_taskengine/{path.relative_to(ROOT)}" for path in (ROOT / "migrations").rglob("*.py")}
    assert "flask_taskengine/migrations/env.py" in scripts
    assert scripts <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert "[flask.commands]\ntaskengine = flask_taskengine.cli:taskengine" in entry_points


def test_the_wheel_has_nothing_else(built: Path) -> None:
    """Nothing beside the package lands in site-packages."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        assert {name.split("/")[0].split("-")[0] for name in wheel.namelist()} == {"flask_taskengine"}
        assert not [name for name in wheel.namelist() if "__pycache__" in name]


def test_the_source_distribution_can_be_tested(built: Path) -> None:
    """Who packages the extension finds the tests and what runs them, and no leftovers of ours."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "tests/conftest.py", "migrations/env.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".sqlite")]

"""The migration scripts, and Alembic as the tool that runs them; it is imported only when there is something to run or to look up."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ..domain.errors import ConfigError

_FIRST_SCRIPT = "0001_first_tables.py"
_one_run = threading.Lock()


def head_revision() -> str:
    """Return the newest revision that this version of the package knows."""
    return _revisions()[0]


def is_known(revision: str) -> bool:
    """Whether this version of the package has the revision's script."""
    return revision in _revisions()


def run_alembic(command: str, revision: str, *, sql: bool = False, buffer: io.StringIO | None = None, **attributes: Any) -> None:
    """Run a command of Alembic with our own environment, which reads the attributes.

    Raises:
        ConfigError: a name is too long for the database.
    """
    from alembic import command as commands
    from alembic.config import Config

    config = Config(output_buffer=buffer, attributes=attributes)
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with _environment_of_our_own():
        try:
            getattr(commands, command)(config, revision, sql=sql)
        except sa.exc.IdentifierError as error:
            raise ConfigError(f"{error}: shorten TASKENGINE_TABLE_PREFIX or TASKENGINE_TASK_TABLE") from error


@cache
def _revisions() -> tuple[str, ...]:
    """Return all revisions, the newest first."""
    from alembic.script import ScriptDirectory

    return tuple(script.revision for script in ScriptDirectory(_folder()).walk_revisions())


def _folder() -> Path:
    """Return the folder of the scripts: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "migrations", package.parent / "migrations"):
        # A folder of this name may be anybody's; only ours has this script.
        if (folder / "versions" / _FIRST_SCRIPT).is_file():
            return folder
    raise ConfigError(f"the migration scripts are missing from {package}: install Flask-TaskEngine again")


@contextmanager
def _environment_of_our_own() -> Iterator[None]:
    """Alembic keeps its environment in module globals: one run at a time, and a host's run that has called us gets its own back."""
    from alembic import context, op

    with _one_run:
        outer = [proxy for module in (context, op) if (proxy := getattr(module, "_proxy", None)) is not None]
        try:
            yield
        finally:
            for proxy in outer:
                proxy._install_proxy()  # noqa: SLF001 - the only way to give it back

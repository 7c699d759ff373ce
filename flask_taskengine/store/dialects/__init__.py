"""What differs from one database to the next, as answers to capabilities and as statements."""

from __future__ import annotations

from importlib import import_module

from ...domain.errors import ConfigError
from ..tables import Names
from .base import Dialect

_DIALECTS = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}


def dialect_for(database: str, names: Names) -> Dialect:
    """Return the dialect for a SQLAlchemy dialect name; its module is imported only now.

    Raises:
        ConfigError: the database is not supported.
    """
    if database not in _DIALECTS:
        raise ConfigError(f"the database {database!r} is not supported: use one of {', '.join(sorted(_DIALECTS))}")
    made: Dialect = getattr(import_module(f".{database}", __name__), _DIALECTS[database])(names)
    return made

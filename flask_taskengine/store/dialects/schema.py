"""What a database needs besides tables when the schema is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

import sqlalchemy as sa

from ...domain.errors import ConfigError
from ..tables import Names, Tables

_DIALECTS = {"postgresql": "PostgreSQLSchema", "sqlite": "SQLiteSchema"}


@dataclass(frozen=True, slots=True)
class Repair:
    """A fault of a schema that stands at the newest revision, and the statements that mend it."""

    fault: str
    statements: tuple[str, ...]


class SchemaDialect(ABC):
    """How one database writes a schema while others want to write the same."""

    @contextmanager
    def transaction(self, engine: sa.Engine, names: Names) -> Iterator[sa.Connection]:
        """Yield a connection of its own that holds the lock, in a transaction that is committed at the end."""
        with engine.begin() as connection:
            self.lock(connection, names)
            yield connection

    @abstractmethod
    def lock(self, connection: sa.Connection, names: Names) -> None:
        """Wait until no other transaction writes this schema, and keep others out until this transaction ends."""

    @abstractmethod
    def ensure_schema(self, connection: sa.Connection, names: Names) -> None:
        """Create the schema of the names, where there is one and it does not exist.

        Raises:
            ConfigError: the database can not create it.
        """

    def preamble(self, names: Names) -> Sequence[str]:
        """Return the statements that a script runs before the migrations."""
        return ()

    def extras(self, tables: Tables) -> Sequence[str]:
        """Return the statements that create what the tables' metadata can not express; they may be run again."""
        return ()

    def repairs(self, connection: sa.Connection, tables: Tables) -> Sequence[Repair]:
        """Return what is damaged beside the tables; finding it takes no lock."""
        return ()


def schema_dialect_for(database: str) -> SchemaDialect:
    """Return the rules for a SQLAlchemy dialect name; its module is imported only now.

    Raises:
        ConfigError: the database is not supported.
    """
    if database not in _DIALECTS:
        raise ConfigError(f"the database {database!r} is not supported: use one of {', '.join(sorted(_DIALECTS))}")
    made: SchemaDialect = getattr(import_module(f".{database}_schema", __package__), _DIALECTS[database])()
    return made


def run(connection: sa.Connection, statements: Sequence[str]) -> None:
    """Run finished statements as they are: no character in them stands for a parameter."""
    for statement in statements:
        connection.execute(sa.text(statement.replace(":", r"\:")))

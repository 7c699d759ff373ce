"""Databases with the engine's schema, made once and copied for each test."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import sqlalchemy as sa

from flask_taskengine.store.migrations import migrate
from flask_taskengine.store.tables import Names


def create_schema(url: str) -> None:
    """Bring the engine's schema into an empty database, and commit."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    migrate(engine, Names())


class PostgresqlDatabases:
    """Databases on one PostgreSQL server, whose names begin with ``prefix``; the user of ``server_url`` may create databases."""

    def __init__(self, server_url: str, prefix: str) -> None:
        self._server_url = sa.make_url(server_url)
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._template: str | None = None
        self._server = sa.create_engine(server_url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def create(self) -> str:
        """Create a database that has the engine's schema, and return its URL."""
        if self._template is None:
            self._template = self._new_template()
        return self._create(self._template)

    def create_empty(self) -> str:
        """Create a database that has nothing in it, and return its URL."""
        return self._create("template0")

    def drop(self, url: str) -> None:
        """Drop a database, and end the sessions that are still in it."""
        self._run(f'DROP DATABASE IF EXISTS "{sa.make_url(url).database}" WITH (FORCE)')

    def close(self) -> None:
        """Drop the template."""
        if self._template is not None:
            self.drop(self._url(self._template))

    def _new_template(self) -> str:
        url = self.create_empty()
        try:
            create_schema(url)
        except BaseException:
            self.drop(url)
            raise
        return str(sa.make_url(url).database)

    def _create(self, template: str) -> str:
        name = f"{self._prefix}_{next(self._numbers)}"
        self._run(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self._url(name)

    def _url(self, database: str) -> str:
        return self._server_url.set(database=database).render_as_string(hide_password=False)

    def _run(self, statement: str) -> None:
        with self._server.connect() as connection:
            connection.exec_driver_sql(statement)


class SqliteDatabases:
    """SQLite files copied from one that has the engine's schema."""

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template.sqlite"

    def create(self, path: Path) -> str:
        """Copy the schema to ``path`` and return the URL."""
        if not self._template.exists():
            unfinished = self._template.with_suffix(".unfinished")
            unfinished.unlink(missing_ok=True)
            create_schema(f"sqlite:///{unfinished}")
            unfinished.rename(self._template)
        shutil.copyfile(self._template, path)
        return f"sqlite:///{path}"

"""What all commands have in common: how they reach the app, how they answer, and how they say what went wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

import click
import sqlalchemy as sa
from flask import current_app, has_app_context
from flask.cli import with_appcontext

from ..domain.errors import ConfigError, TaskEngineError
from ..runtime.host import Host
from ..store import migrations
from ..store.clock import db_now
from ..store.dialects.base import Dialect
from ..store.tables import Tables

json_option = click.option(
    "--json", "as_json", is_flag=True, allow_from_autoenv=False, help='Print one JSON value, also of an error: {"error": ...}.'
)

task_id_argument = click.argument("task_id", metavar="ID", type=int)


class Command(click.Command):
    """Says what the engine or the database refused in one line, or with ``--json`` as one value; the exit code is then 1."""

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:
        """Read the arguments; a wrong one is answered as JSON where JSON was asked for."""
        given = list(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.ClickException as error:
            if "--json" not in given:
                raise
            raise _as_json(error.format_message(), error.exit_code) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and word what it raises."""
        as_json = ctx.params.get("as_json", False)
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            refusal = _refusal(error)
            if refusal is not None:
                raise (_as_json(refusal.format_message(), refusal.exit_code) if as_json else refusal) from None
            if as_json:
                _print_json({"error": f"{type(error).__name__}: {error}"})
            raise


def command(name: str | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command that runs inside the app's context; its docstring is the help."""

    def made(function: Callable[..., Any]) -> Command:
        return click.command(name, cls=Command)(with_appcontext(function))

    return made


def current_host() -> Host:
    """Return what the engine knows of the current app.

    Raises:
        ConfigError: the app has no engine, or no database.
    """
    engine = current_app.extensions.get("taskengine")
    if engine is None:
        raise ConfigError(f"the app {current_app.name!r} has no TaskEngine: call TaskEngine(app, db), or engine.init_app(app)")
    host: Host = engine.host(current_app._get_current_object())  # type: ignore[attr-defined]
    try:
        host.database()
    except RuntimeError as error:
        raise ConfigError(str(error)) from None
    return host


class Transaction(NamedTuple):
    """Where a command's statements run."""

    connection: sa.Connection
    dialect: Dialect

    @property
    def tables(self) -> Tables:
        """The engine's tables."""
        return self.dialect.tables

    def now(self) -> datetime:
        """Read the database's clock."""
        now: datetime = self.connection.execute(sa.select(db_now())).scalar_one()
        return now


@contextmanager
def transaction(host: Host) -> Iterator[Transaction]:
    """Give the transaction of ``db.session``, in which the engine's verbs work too; commits at the end, rolls back on an error."""
    session = host.database().session
    try:
        connection = session.connection()
        yield Transaction(connection, host.dialect(connection.dialect.name))
        session.commit()
    except BaseException:
        session.rollback()
        raise


def answer(as_json: bool, value: Any, text: str) -> None:
    """Print the one or the other."""
    if as_json:
        _print_json(value)
    else:
        click.echo(text)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, default=str))


def _as_json(text: str, exit_code: int) -> click.exceptions.Exit:
    _print_json({"error": text})
    return click.exceptions.Exit(exit_code)


def _refusal(error: Exception) -> click.ClickException | None:
    """Word an error that is no fault of the code's; what the host's own code raises while it makes the app is not ours to word."""
    match error:
        case click.ClickException():
            return error
        case TaskEngineError():
            return click.ClickException(str(error))
        case sa.exc.DBAPIError() if has_app_context():
            return click.ClickException(_worded(error))
        case _:
            return None


def _worded(error: sa.exc.DBAPIError) -> str:
    said = next(iter(str(error.orig).strip().splitlines()), type(error.orig).__name__)
    try:
        host = current_host()
        with host.sql_engine().connect() as connection:
            faults = migrations.schema_faults(connection, host.names)
    except sa.exc.DBAPIError:
        return f"the database does not answer: {said}; see that it runs, and that SQLALCHEMY_DATABASE_URI is right"
    return "; ".join(faults) or f"the database refused this: {said}"

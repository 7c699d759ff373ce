"""The database's clock, the only clock that times are compared with."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from .types import UtcDateTime

_SQLITE_FORMAT = "'%Y-%m-%d %H:%M:%f'"


class db_now(FunctionElement[Any]):
    """The start of the current statement. Not of the transaction: a long one would make its delays too short."""

    type = UtcDateTime()
    inherit_cache = True
    name = "db_now"


class db_after(FunctionElement[Any]):
    """The start of the current statement plus seconds: ``db_after(sa.bindparam("delay"))``; negative seconds look back."""

    type = UtcDateTime()
    inherit_cache = True
    name = "db_after"

    def __init__(self, delay: float | sa.ColumnElement[Any]) -> None:
        super().__init__(delay if isinstance(delay, sa.ColumnElement) else sa.literal(delay, sa.Float()))


class seconds_since(FunctionElement[Any]):
    """Seconds from a time column to the database's now; negative while it lies ahead."""

    type = sa.Float()
    inherit_cache = True
    name = "seconds_since"


@compiles(db_now)
def _(element: Any, compiler: Any, **kw: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(db_now, "postgresql")
def _(element: Any, compiler: Any, **kw: Any) -> str:
    return "statement_timestamp()"


@compiles(db_now, "sqlite")
def _(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(strftime({_SQLITE_FORMAT}, 'now'))"


@compiles(db_after, "postgresql")
def _(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(statement_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


@compiles(db_after, "sqlite")
def _(element: Any, compiler: Any, **kw: Any) -> str:
    return f"strftime({_SQLITE_FORMAT}, 'now', printf('%+.3f seconds', {compiler.process(element.clauses, **kw)}))"


@compiles(seconds_since, "postgresql")
def _(element: Any, compiler: Any, **kw: Any) -> str:
    return f"CAST(EXTRACT(epoch FROM statement_timestamp() - {compiler.process(element.clauses, **kw)}) AS double precision)"


@compiles(seconds_since, "sqlite")
def _(element: Any, compiler: Any, **kw: Any) -> str:
    return f"((julianday('now') - julianday({compiler.process(element.clauses, **kw)})) * 86400.0)"

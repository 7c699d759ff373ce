"""Column types that mean the same on every database."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, oracle, postgresql, sqlite

from ..domain.task import Unreadable

BigInt = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
"""SQLite gives automatic ids to INTEGER only; it holds 64 bits there too."""


_LAST = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An aware datetime, in UTC when read. SQLite keeps text in the form of its own ``strftime``, to the millisecond."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        match dialect.name:
            case "sqlite":
                return dialect.type_descriptor(sa.String(23))
            case "mysql" | "mariadb":
                return dialect.type_descriptor(mysql.DATETIME(fsp=6))
            case "oracle":
                return dialect.type_descriptor(oracle.TIMESTAMP(timezone=True))
            case _:
                return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone: give an aware datetime")
        value = value.astimezone(UTC)
        if dialect.name == "sqlite":
            # Rounded up: a task must never start before its time.
            value = min(value, _LAST) + timedelta(microseconds=-min(value, _LAST).microsecond % 1000)
            return value.replace(tzinfo=None).isoformat(" ", "milliseconds")
        if dialect.name in ("mysql", "mariadb"):
            return value.replace(tzinfo=None)
        return value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class JsonText(sa.types.TypeDecorator[Any]):
    """JSON that is written as finished text and read as Python values; JSONB on PostgreSQL."""

    impl = sa.Text()
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        match dialect.name:
            case "postgresql":
                return dialect.type_descriptor(_PlainJsonb())
            case "mysql" | "mariadb":
                return dialect.type_descriptor(mysql.LONGTEXT())
            case _:
                return dialect.type_descriptor(sa.Text())

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return read_json(value)


def read_json(text: str | bytes | None) -> Any:
    """Return the value of stored JSON. What can not be read comes back as ``Unreadable``: one such row must not spoil a batch."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        stored = text if isinstance(text, str) else text.decode(errors="backslashreplace")
        return Unreadable.because(stored, str(error))


class _PlainJsonb(postgresql.JSONB):
    """JSONB that is text on our side: written as it is, and read as text, since the driver fails a whole result for one value."""

    def adapt(self, cls: Any, **kw: Any) -> Any:
        """Stay of this type: the driver's own JSONB would write the text as a JSON string."""
        return type(self)()

    def column_expression(self, column: Any) -> sa.ColumnElement[Any]:
        return sa.type_coerce(sa.cast(column, sa.Text()), JsonText())

    def bind_processor(self, dialect: sa.Dialect) -> None:
        return None

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> None:
        return None

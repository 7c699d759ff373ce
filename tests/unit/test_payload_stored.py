"""Payloads as a database gives them back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flask_taskengine.domain.errors import PayloadError
from flask_taskengine.engine.failures import clean_text
from flask_taskengine.engine.payload import plain_codec

from ..support.databases import PostgresqlDatabases

pytestmark = pytest.mark.postgresql

any_text = st.text(st.characters(codec=None, exclude_categories=[]))
payloads = st.recursive(
    st.booleans() | st.integers() | st.floats() | any_text, lambda inner: st.lists(inner) | st.dictionaries(any_text, inner), max_leaves=10
)


@pytest.fixture(scope="module")
def connection(postgresql_databases: PostgresqlDatabases) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection to a database of these tests."""
    url = postgresql_databases.create()
    with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
        yield connection
    postgresql_databases.drop(url)


@settings(deadline=None)
@given(payloads)
def test_jsonb_takes_every_payload_that_is_not_refused(connection: psycopg.Connection[Any], value: Any) -> None:
    """What the codec writes, JSONB stores and gives back, with the types it had; only the sign of `-0.0` is lost."""
    try:
        text = plain_codec("t").dump(value)
    except PayloadError:
        return
    row = connection.execute("SELECT %s::jsonb", [text]).fetchone()
    assert row is not None
    assert _types(row[0]) == _types(value)


@settings(deadline=None)
@given(any_text)
def test_cleaned_text_is_stored_as_it_is(connection: psycopg.Connection[Any], text: str) -> None:
    """The text of any error can be stored."""
    cleaned = clean_text(text, 100)
    row = connection.execute("SELECT %s::text", [cleaned]).fetchone()
    assert row == (cleaned,)


def _types(value: Any) -> Any:
    """Write a value so that only equal values of equal types are written alike; JSONB sorts keys."""
    if isinstance(value, dict):
        return {key: _types(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_types(item) for item in value]
    return repr(value + 0.0) if isinstance(value, float) else json.dumps(value)

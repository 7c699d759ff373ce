"""A host with the API switched on, and clients of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop, events, make_shop, run_worker

__all__ = ["events", "make_shop", "run_worker"]

WRITER, READER = "writer-0123456789-0123456789", "reader-0123456789-0123456789"
SETTINGS: dict[str, Any] = {"TASKENGINE_API_ENABLED": True, "TASKENGINE_API_TOKENS": {WRITER: "read-write", READER: "read"}}


class Client:
    """Calls the API with a token; answers are what the test client gives."""

    def __init__(self, client: FlaskClient, token: str | None) -> None:
        self._client = client
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(path: str, **options: Any) -> Any:
            headers = self._headers | options.pop("headers", {})
            return self._client.open(f"/taskengine{path}", method=method.upper(), headers=headers, **options)

        return call


@pytest.fixture
def shop(make_shop: MakeShop) -> Shop:
    """Make a host with the API switched on."""
    return make_shop(**SETTINGS)


@pytest.fixture
def api(shop: Shop) -> Client:
    """Return a client that may do everything."""
    return Client(shop.app.test_client(), WRITER)

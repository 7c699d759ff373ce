"""A shop on PostgreSQL, and workers that run in the test's own process."""

from __future__ import annotations

import pytest

from tests.support.shop_fixtures import events, make_shop, run_worker, shop

__all__ = ["events", "make_shop", "run_worker", "shop"]


@pytest.fixture
def database_url(postgresql_url: str) -> str:
    """Run on PostgreSQL only."""
    return postgresql_url

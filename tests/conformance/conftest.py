"""A shop on each database, and workers that run in the test's own process."""

from tests.support.shop_fixtures import events, make_shop, run_worker, shop

__all__ = ["events", "make_shop", "run_worker", "shop"]

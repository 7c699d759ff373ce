"""A host that serves its dashboard, and Chromium to look at it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from werkzeug.serving import make_server

from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop, make_shop, run_worker

__all__ = ["make_shop", "run_worker"]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Run on SQLite: what the pages read is tested on every database elsewhere."""
    return sqlite_url


@pytest.fixture
def shop(make_shop: MakeShop) -> Shop:
    """Make a host whose dashboard is open."""
    return make_shop(TASKENGINE_API_ENABLED=True, TASKENGINE_API_UNPROTECTED=True)


@pytest.fixture
def address(shop: Shop) -> Iterator[str]:
    """Serve the host, and return where its dashboard stands."""
    server = make_server("127.0.0.1", 0, shop.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="server")
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/taskengine"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start Chromium, where there is one."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium on this machine: install the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:
    """Open a tab that fails the test where a page says that something is wrong with its script."""
    context = chromium.new_context(base_url=address, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert wrong == []

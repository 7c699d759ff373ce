"""What people do with the dashboard, done by a real browser."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from flask_taskengine import TaskContext
from flask_taskengine.domain.schedule import FixedRate
from tests.support.shop import Shop
from tests.support.shop_fixtures import RunWorker
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.sqlite]

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
PAGES = [
    "/",
    "/ui/tasks",
    "/ui/tasks/1",
    "/ui/dead",
    "/ui/types",
    "/ui/nodes",
    "/ui/schedules",
    "/docs",
    "/ui/confirm?act=retry&query=status%3DDEAD",
]


def end(shop: Shop, ids: list[int], status: str, error: str | None = None) -> None:
    """End tasks by hand."""
    for task_id in ids:
        ended = "finished_at = updated_at, claimed_at = updated_at, last_error = :error"
        shop.sql(f"UPDATE taskengine_task SET status = :status, {ended} WHERE id = :id", status=status, error=error, id=task_id)


@pytest.fixture
def some(shop: Shop) -> list[int]:
    """Make tasks of every kind, with a script wherever one can stand."""
    shop.engine.task("email")(lambda payload: None)
    shop.engine.schedule("tick", FixedRate("1h"))(lambda: None)
    ids = [shop.enqueue("email", {"n": n, "text": SCRIPT}) for n in range(12)]
    end(shop, ids[:3], "DEAD", f"KeyError: {SCRIPT}")
    end(shop, ids[3:6], "SUCCEEDED")
    end(shop, [shop.enqueue(SCRIPT)], "FAILED", SCRIPT)
    return ids


def open_page(page: Page, address: str, path: str) -> None:
    """Load a page of the dashboard."""
    answer = page.goto(f"{address}{path}")
    assert answer is not None
    assert answer.ok


def test_filter_and_retry_all_that_it_finds(page: Page, address: str, shop: Shop, some: list[int]) -> None:
    """The filter stands in the address; all that meet it are counted and shown first, and held back until nobody undoes it."""
    open_page(page, address, "/")
    page.get_by_role("link", name=re.compile("DEAD")).click()
    expect(page).to_have_url(re.compile(r"status=DEAD"))
    expect(page.locator("tbody tr")).to_have_count(3)
    page.locator("select[name=scope]").select_option("all")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Retry\\s+3 tasks"))
    page.clock.install()
    page.get_by_role("button", name="Retry them").click()
    page.get_by_role("button", name="Undo").click()
    page.clock.run_for(10_000)
    assert shop.task(some[0]).status == "DEAD"
    page.get_by_role("button", name="Retry them").click()
    page.clock.run_for(6_000)
    expect(page.get_by_text("3 tasks are PENDING again")).to_be_visible()
    assert [shop.task(task_id).status for task_id in some[:3]] == ["PENDING"] * 3


def test_ticked_tasks_are_cancelled_after_the_time_for_undoing(page: Page, address: str, shop: Shop, some: list[int]) -> None:
    """Nothing is sent while it can be undone; without a tick there is nothing to do."""
    open_page(page, address, "/ui/tasks?status=PENDING")
    page.clock.install()
    page.locator("select[name=act]").select_option("cancel")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("No task is ticked")).to_be_visible()
    page.get_by_label("Tick all on this page").check()
    page.get_by_role("button", name="Go on").click()
    assert shop.task(some[11]).status == "PENDING"
    page.clock.run_for(6_000)
    expect(page.get_by_text("6 of 6 tasks are cancelled")).to_be_visible()
    assert shop.task(some[11]).status == "CANCELLED"


def test_r27_pause_and_resume(page: Page, address: str, shop: Shop, some: list[int]) -> None:
    """With a reason, seen on the first page."""
    open_page(page, address, "/ui/types")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="email"))
    row.get_by_label("Reason to pause email").fill("the mail server is down")
    row.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status").first).to_have_text("Type email is paused.")
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_text("the mail server is down")).to_be_visible()
    page.get_by_role("link", name="Resume").click()
    row.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Type email goes on")).to_be_visible()
    assert shop.sql("SELECT count(*) FROM taskengine_type WHERE paused_at IS NOT NULL") == [(0,)]


def test_progress_moves_without_a_reload(page: Page, address: str, shop: Shop, run_worker: RunWorker) -> None:
    """The bar follows the handler while the tab can be seen; in a hidden tab nothing is asked of the server."""
    on, done = threading.Event(), threading.Event()

    @shop.engine.task("long")
    def work(payload: Any, context: TaskContext) -> None:
        context.progress(25, 100, "first part")
        assert on.wait(30)
        context.progress(75, 100, "second part")
        assert done.wait(30)

    task_id = shop.enqueue("long")
    run_worker(shop)
    wait_until(lambda: (shop.task(task_id).progress or {}).get("done") == 25)
    open_page(page, address, f"/ui/tasks/{task_id}")
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "25")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.install()
    on.set()
    page.clock.run_for(60_000)
    assert asked == []
    wait_until(lambda: (shop.task(task_id).progress or {}).get("done") == 75)
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => false, configurable: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(5_000)
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "75")
    done.set()
    shop.wait_for(task_id)


def test_by_keyboard_alone(page: Page, address: str, shop: Shop, some: list[int]) -> None:
    """From the skip link to a filtered list and a cancelled task; what has the focus can be seen."""
    open_page(page, address, "/ui/tasks")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("pending")).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("status=PENDING"))
    link = page.get_by_role("link", name=str(some[6]), exact=True)
    link.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel").focus()
    page.clock.install()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    page.clock.run_for(6_000)
    expect(page.get_by_text(f"Task {some[6]} is cancelled")).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)])
def test_everybody_can_use_every_page(page: Page, address: str, shop: Shop, some: list[int], scheme: Any, width: int) -> None:
    """No serious violation, nothing to scroll sideways for, the colours that were asked for; what is stored does not run."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    for path in PAGES:
        open_page(page, address, path)
        result = Axe().run(page).response
        assert len(result["passes"]) > 5, path
        assert [one["id"] for one in result["violations"] if one["impact"] in ("serious", "critical")] == [], path
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, path
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark == (scheme == "dark")
        assert page.evaluate("window.hacked") is None

"""The dashboard as the server renders it: it works without a script, on every database."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask.testing import FlaskClient

from flask_taskengine.domain.schedule import FixedRate
from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop

from .test_calls import end

PAGES = ["/", "/ui/tasks", "/ui/dead", "/ui/types", "/ui/nodes", "/ui/schedules", "/docs", "/ui/confirm?act=retry&query="]


class Browser:
    """A browser without a script."""

    def __init__(self, client: FlaskClient, prefix: str = "/taskengine") -> None:
        self._client = client
        self._prefix = prefix

    def see(self, path: str, status: int = 200) -> str:
        """Load a page."""
        answer = self._client.get(f"{self._prefix}{path}")
        assert answer.status_code == status, answer.text
        assert answer.mimetype == "text/html"
        return answer.text

    def send(self, path: str, status: int = 200, *, csrf: bool = True, **fields: Any) -> str:
        """Send a form, and return the page that follows."""
        token = re.search(r'name="csrf_token" value="([^"]+)"', self.see("/ui/types"))
        assert token is not None
        fields |= {"csrf_token": token[1]} if csrf else {}
        answer = self._client.post(f"{self._prefix}{path}", data=fields, headers={"Origin": "http://localhost"}, follow_redirects=True)
        assert answer.status_code == status, answer.text
        return answer.text


@pytest.fixture
def shop(make_shop: MakeShop) -> Shop:
    """Make a host whose pages are open for everybody."""
    return make_shop(TASKENGINE_API_ENABLED=True, TASKENGINE_API_UNPROTECTED=True, TASKENGINE_REDACT=("password",))


@pytest.fixture
def browser(shop: Shop) -> Browser:
    """Return a browser without a script."""
    return Browser(shop.app.test_client())


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_there_before_anything_has_happened(browser: Browser, path: str) -> None:
    """No table has a row yet, no worker was ever there."""
    assert "<main" in browser.see(path)


def test_a_task_and_what_became_of_it(shop: Shop, browser: Browser) -> None:
    """Its payload, errors, tracebacks, and why it does not run; hidden fields stay hidden."""
    task_id = shop.enqueue("a", {"user": "ada", "password": "secret"})
    shop.sql(
        "INSERT INTO taskengine_attempt (task_id, claims, attempt, node, error_class, message, traceback)"
        " VALUES (:id, 1, 1, 'node-1', 'ValueError', 'no', 'Traceback: line 42')",
        id=task_id,
    )
    page = browser.see(f"/ui/tasks/{task_id}")
    for text in ("ada", "ValueError", "Traceback: line 42", "no worker is alive", "node-1"):
        assert text in page
    assert "secret" not in page
    assert "404" not in browser.see("/ui/tasks/999", 404)


def test_the_filter_stands_in_the_address(shop: Shop, browser: Browser) -> None:
    """What a form sends with empty fields is no filter; what is wrong is said and shows nothing twice."""
    ids = shop.enqueue_many("a", "b", "a")
    end(shop, ids[0], "DEAD", "KeyError: 'x'")
    page = browser.see("/ui/tasks?status=DEAD&type=&error=keyerror&key=&priority=&payload_path=&payload_value=")
    assert f"/ui/tasks/{ids[0]}" in page
    assert f"/ui/tasks/{ids[1]}" not in page
    assert 'value="keyerror"' in page
    assert "Not a valid integer" in browser.see("/ui/tasks?priority=high")
    assert "No task meets this filter" in browser.see("/ui/tasks?type=nope")


def test_single_acts_by_form(shop: Shop, browser: Browser) -> None:
    """Cancel, retry and delete; what is refused is said with its status; other places are not gone to."""
    task_id = shop.enqueue("a")
    assert f"Task {task_id} is cancelled" in browser.send(f"/ui/tasks/{task_id}/cancel", next=f"/taskengine/ui/tasks/{task_id}")
    assert shop.task(task_id).status == "CANCELLED"
    browser.send(f"/ui/tasks/{task_id}/cancel", 409)
    browser.send(f"/ui/tasks/{task_id}/retry", next="//evil.example")
    assert shop.task(task_id).status == "PENDING"
    browser.send(f"/ui/tasks/{task_id}/explode", 422)
    for trick in ("/\t/evil.example/", "/\\evil.example", "/\n/evil.example", "//evil.example", "javascript:alert(1)"):
        assert "<main" in browser.send("/ui/types/resume", next=trick)
    browser.send(f"/ui/tasks/{task_id}/delete", next="https://evil.example")
    assert shop.tasks() == []


def test_nothing_happens_without_the_csrf_token(shop: Shop, browser: Browser) -> None:
    """Each form is refused, and the page says why."""
    task_id = shop.enqueue("a")
    for path in (f"/ui/tasks/{task_id}/delete", "/ui/bulk", "/ui/enqueue", "/ui/types/pause", "/ui/schedules/run", "/ui/dead/retry"):
        assert "CSRF token" in browser.send(path, 403, csrf=False)
    assert shop.task(task_id).status == "PENDING"


def test_many_tasks_at_once(shop: Shop, browser: Browser) -> None:
    """The ticked ones at once; all that meet a filter after a look at how many they are."""
    ids = shop.enqueue_many(*["a"] * 4, "b")
    assert "2 of 2 tasks are cancelled" in browser.send("/ui/bulk", act="cancel", scope="ticked", id=ids[:2])
    asked = browser.send("/ui/bulk", act="cancel", scope="all", query="type=a")
    assert "Cancel 2 tasks?" in " ".join(asked.split())
    assert [task.status.value for task in shop.tasks()].count("CANCELLED") == 2
    assert "2 tasks are cancelled" in browser.send("/ui/bulk", act="cancel", scope="all", query="type=a", confirmed="1")
    assert shop.task(ids[4]).status == "PENDING"
    browser.send("/ui/bulk", 422, act="delete", scope="all", query="", confirmed="1")
    assert len(shop.tasks()) == 5
    browser.send("/ui/bulk", 422, act="explode")
    browser.send("/ui/bulk", 422, act="retry", scope="all", query="priority=x", confirmed="1")


def test_a_task_can_be_enqueued_again_edited(shop: Shop, browser: Browser) -> None:
    """With another payload; what is hidden must be written anew, and what is no JSON is refused."""
    assert "is enqueued" in browser.send("/ui/enqueue", type="a", payload='{"n": 2}', priority="7")
    (task,) = shop.tasks()
    assert (task.payload, task.priority) == ({"n": 2}, 7)
    browser.send("/ui/enqueue", 422, type="a", payload="{")
    browser.send("/ui/enqueue", 422, type="a", payload='{"password": "***"}')
    browser.send("/ui/enqueue", 422, type="", payload="1")
    assert len(shop.tasks()) == 1


def test_r27_pausing_from_the_page(shop: Shop, browser: Browser) -> None:
    """A type, and everything; the first page says so."""
    shop.engine.task("a")(lambda payload: None)
    assert "Type a is paused" in browser.send("/ui/types/pause", type="a", reason="a bad deploy")
    assert "a bad deploy" in browser.see("/")
    assert "Everything is paused" in browser.send("/ui/types/pause")
    browser.send("/ui/types/resume")
    assert "Type a goes on" in browser.send("/ui/types/resume", type="a")
    assert "a bad deploy" not in browser.see("/ui/types")


def test_schedules_from_the_page(shop: Shop, browser: Browser) -> None:
    """Run, pause and resume."""
    shop.engine.schedule("tick", FixedRate("1h"))(lambda: None)
    assert "tick" in browser.see("/ui/schedules")
    assert "is paused" in browser.send("/ui/schedules/pause", name="tick")
    assert "runs now" in browser.send("/ui/schedules/run", name="tick")
    assert "goes on" in browser.send("/ui/schedules/resume", name="tick")
    browser.send("/ui/schedules/run", 404, name="nope")
    browser.send("/ui/schedules/explode", 422, name="tick")


def test_r20_dead_tasks_from_the_page(shop: Shop, browser: Browser) -> None:
    """One of a group, then the rest."""
    ids = shop.enqueue_many(*["a"] * 3)
    for task_id in ids:
        end(shop, task_id, "DEAD", f"KeyError: {task_id}")
    found = re.search(r'name="fingerprint" value="(\w+)"', browser.see("/ui/dead"))
    assert found is not None
    assert "1 tasks are PENDING" in browser.send("/ui/dead/retry", fingerprint=found[1], only_first="1")
    assert "2 tasks are PENDING" in browser.send("/ui/dead/retry", fingerprint=found[1])


def test_what_is_stored_is_text_everywhere(shop: Shop, browser: Browser) -> None:
    """A script in a payload, a type, an error, a reason or a key is shown and does not run."""
    script = "<script>alert(1)</script>"
    task_id = shop.enqueue(script, {script: script}, idempotency_key=script)
    end(shop, task_id, "DEAD", script)
    browser.send("/ui/types/pause", type=script, reason=script)
    shop.engine.task(script)(lambda payload: None)
    for path in [*PAGES, f"/ui/tasks/{task_id}", f"/ui/tasks?type={script}&error={script}"]:
        page = browser.see(path)
        assert script not in page
        assert "|safe" not in page


def test_without_a_secret_key_the_pages_can_be_read(make_shop: MakeShop) -> None:
    """There are no forms then, and the page says why."""
    shop = make_shop(TASKENGINE_API_ENABLED=True, TASKENGINE_API_UNPROTECTED=True, SECRET_KEY=None)
    page = Browser(shop.app.test_client()).see("/ui/types")
    assert "SECRET_KEY" in page
    assert '<form method="post"' not in page


def test_any_prefix_and_a_proxy_in_front(make_shop: MakeShop) -> None:
    """Links, forms and files follow the prefix and what the proxy has taken from the path."""
    shop = make_shop(TASKENGINE_API_ENABLED=True, TASKENGINE_API_UNPROTECTED=True, TASKENGINE_API_URL_PREFIX="/ops/queue")
    client = shop.app.test_client()
    page = client.get("/ops/queue/", base_url="http://localhost/shop").text
    links = re.findall(r'(?:href|src|action)="([^"#]+)"', page)
    assert links
    assert all(link.startswith("/shop/ops/queue/") for link in links)
    answer = client.get("/ops/queue/ui/types", base_url="http://localhost/shop")
    assert "Path=/shop/ops/queue" in answer.headers["Set-Cookie"]
    assert client.get("/ops/queue/openapi.json", base_url="http://localhost/shop").json["servers"] == [{"url": "/shop/ops/queue"}]  # type: ignore[index]

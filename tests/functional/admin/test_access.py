"""Who may use the API: nobody, until the app says so; and what it takes to change something from a browser."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from flask import Flask, Response, abort, redirect, request

from flask_taskengine.domain.errors import ConfigError
from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop

from .conftest import READER, SETTINGS, WRITER, Client

BROWSER = {"Origin": "http://localhost"}


def routes(app: Flask) -> list[tuple[str, str]]:
    """Return the method and a path of each route of the blueprint, but for files of the pages."""
    found = []
    for rule in app.url_map.iter_rules():
        if rule.endpoint.startswith("taskengine.") and rule.endpoint != "taskengine.static":
            path = rule.rule
            for name in rule.arguments:
                path = path.replace(f"<taskengine_name:{name}>", "1").replace(f"<{name}>", "1").replace(f"<path:{name}>", "1")
            found += [(method, path) for method in rule.methods & {"GET", "POST", "DELETE"}]  # type: ignore[operator]
    return sorted(found)


def test_r13_without_a_guard_everybody_is_refused(make_shop: MakeShop, caplog: pytest.LogCaptureFixture) -> None:
    """403 at each route, nothing changes, and one line in the log says what to do."""
    shop = make_shop(TASKENGINE_API_ENABLED=True)
    task_id = shop.enqueue("a")
    client = shop.app.test_client()
    assert len(routes(shop.app)) > 20
    for method, path in routes(shop.app):
        assert client.open(path, method=method, json={} if method == "POST" else None).status_code == 403, (method, path)
    assert shop.task(task_id).status == "PENDING"
    assert [message for message in caplog.messages if "@engine.admin_guard" in message][1:] == []


def test_r13_the_guard_decides(make_shop: MakeShop) -> None:
    """It is asked for read and write; false refuses, a response is sent, a text is who it was."""
    shop = make_shop(TASKENGINE_API_ENABLED=True)
    asked: list[str] = []
    answers: list[Any] = [True, False, redirect("/login"), "ada"]

    @shop.engine.admin_guard
    def allow(action: str) -> Any:
        asked.append(action)
        return answers.pop(0)

    client = shop.app.test_client()
    assert client.get("/taskengine/tasks").status_code == 200
    assert client.post("/taskengine/types/*/pause", json={}).status_code == 403
    assert client.get("/taskengine/tasks").headers["Location"] == "/login"
    assert client.post("/taskengine/types/*/pause", json={"reason": "no"}).status_code == 200
    assert asked == ["read", "write", "read", "write"]
    assert shop.sql("SELECT paused_by, pause_reason FROM taskengine_type") == [("ada", "no")]


def test_r13_tokens_read_or_write(shop: Shop) -> None:
    """An unknown token is 401, one that reads may not act, and nobody without one may look."""
    client = shop.app.test_client()
    assert Client(client, "unknown").get("/tasks").status_code == 401
    assert Client(client, READER).get("/tasks").status_code == 200
    assert Client(client, READER).post("/tasks", json={"type": "a"}).status_code == 403
    assert Client(client, WRITER).post("/tasks", json={"type": "a"}).status_code == 201
    assert Client(client, None).get("/tasks").status_code == 403


def test_r13_unprotected_is_a_choice(make_shop: MakeShop) -> None:
    """``API_UNPROTECTED`` opens it for everybody."""
    shop = make_shop(TASKENGINE_API_ENABLED=True, TASKENGINE_API_UNPROTECTED=True)
    assert shop.app.test_client().post("/taskengine/tasks", json={"type": "a"}).status_code == 201


@pytest.mark.parametrize("mark", [BROWSER, {"Sec-Fetch-Site": "cross-site"}, {}])
def test_r13_a_browser_needs_the_csrf_token(make_shop: MakeShop, mark: dict[str, str]) -> None:
    """A page of somebody else can not make a browser act: without the token, or with one of its own making, it is refused."""
    shop = make_shop(TASKENGINE_API_ENABLED=True, TASKENGINE_API_UNPROTECTED=True)
    client = shop.app.test_client()
    client.set_cookie("session", "of the host")
    assert client.post("/taskengine/tasks", json={"type": "a"}, headers=mark).status_code == 403
    client.set_cookie("taskengine_csrf", "forged", path="/taskengine")
    assert client.post("/taskengine/tasks", json={"type": "a"}, headers=mark | {"X-CSRF-Token": "forged"}).status_code == 403
    token = client.get("/taskengine/csrf").json["csrf_token"]  # type: ignore[index]
    assert client.post("/taskengine/tasks", json={"type": "a"}, headers=BROWSER | {"X-CSRF-Token": token}).status_code == 201
    assert client.post("/taskengine/tasks", json={"type": "a"}, headers=BROWSER | {"X-CSRF-Token": f"{token}x"}).status_code == 403
    assert len(shop.tasks()) == 1


def test_r13_answers_let_browsers_run_nothing_else(api: Client) -> None:
    """A strict policy, no framing, no sniffing, nothing kept; also on errors."""
    for answer in (api.get("/tasks"), api.get("/tasks/0")):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert (answer.headers["X-Content-Type-Options"], answer.headers["Cache-Control"]) == ("nosniff", "no-store")


def test_r13_each_write_leaves_an_audit_line(shop: Shop, api: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Who, what and to which task; reading leaves none, and the token itself is not in it."""
    caplog.set_level(logging.INFO, "flask_taskengine.audit")
    task_id = api.post("/tasks", json={"type": "a"}).json["id"]
    api.post(f"/tasks/{task_id}/cancel")
    api.post(f"/tasks/{task_id}/retry")
    api.get("/tasks")
    api.post(f"/tasks/{task_id}/cancel")
    api.delete(f"/tasks/{task_id}")
    lines = [record.getMessage() for record in caplog.records if record.name == "flask_taskengine.audit"]
    assert [line.split(": ", 1)[1] for line in lines] == [
        f"enqueue task {task_id} of type a",
        f"cancel task {task_id}",
        f"retry task {task_id}",
        f"cancel task {task_id}",
        f"delete task {task_id}",
    ]
    assert WRITER not in caplog.text


def test_r13_payload_fields_can_be_hidden(make_shop: MakeShop) -> None:
    """``TASKENGINE_REDACT`` holds in lists, details, samples and what is enqueued."""
    shop = make_shop(**SETTINGS, TASKENGINE_REDACT=("password",))
    api = Client(shop.app.test_client(), WRITER)
    made = api.post("/tasks", json={"type": "a", "payload": {"user": "ada", "password": "secret"}})
    texts = [made.text, api.get("/tasks").text, api.get(f"/tasks/{made.json['id']}").text]
    texts.append(api.post("/tasks/bulk/cancel", json={"all": True, "dry_run": True}).text)
    for text in texts:
        assert "secret" not in text
        assert '"password": "***"' in text


def test_r13_the_api_is_off_by_default(make_shop: MakeShop) -> None:
    """Nothing but the health route stands there."""
    shop = make_shop()
    client = shop.app.test_client()
    assert client.get("/taskengine/tasks").status_code == 404
    assert client.get("/taskengine/health").status_code == 200


def test_r13_a_missing_library_is_named(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever switches the API on without its libraries is told what to install."""
    monkeypatch.setitem(sys.modules, "webargs.flaskparser", None)
    for name in [name for name in sys.modules if name.startswith("flask_taskengine.admin.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"flask-taskengine\[admin\]"):
        make_shop(TASKENGINE_API_ENABLED=True)


def test_r13_the_guards_own_session_is_apart(make_shop: MakeShop) -> None:
    """What the guard does with ``db.session`` is neither committed nor in the way."""
    shop = make_shop(TASKENGINE_API_ENABLED=True)

    @shop.engine.admin_guard
    def allow(action: str) -> bool | Response:
        from tests.support.shop import Effect

        shop.db.session.add(Effect(name=f"guard {action}"))
        shop.db.session.connection()
        return True

    assert shop.app.test_client().post("/taskengine/tasks", json={"type": "a"}).status_code == 201
    assert len(shop.tasks()) == 1
    assert shop.effects() == []


# --- attacks ------------------------------------------------------------------------------------------------------------------


def test_r9_health_answers_whatever_the_guard_does(make_shop: MakeShop) -> None:
    """A guard that aborts, redirects or fails takes the details and nothing else."""
    shop = make_shop(TASKENGINE_API_ENABLED=True)

    @shop.engine.admin_guard
    def allow(action: str) -> Any:
        return abort(401) if request.args else request.environ["no such thing"]

    client = shop.app.test_client()
    assert client.get("/taskengine/health").get_json() == {"status": "UP"}
    assert client.get("/taskengine/health?x=1").get_json() == {"status": "UP"}
    assert client.get("/taskengine/tasks?limit=1").status_code == 401


def test_the_audit_log_can_not_be_forged(shop: Shop, api: Client, caplog: pytest.LogCaptureFixture) -> None:
    """A line end in a reason or a name stays inside its own line."""
    caplog.set_level(logging.INFO, "flask_taskengine.audit")
    api.post("/types/a/pause", json={"reason": "x\nroot: delete everything"})
    assert api.post("/schedules/x%0Aroot: y/run", json={}).status_code == 404
    assert all("\n" not in record.getMessage() for record in caplog.records if record.name == "flask_taskengine.audit")


def test_hidden_fields_can_not_be_guessed(make_shop: MakeShop) -> None:
    """A search for the value of a field that is not shown would show it after all."""
    shop = make_shop(**SETTINGS, TASKENGINE_REDACT=("password",))
    shop.enqueue("a", {"user": {"password": "secret"}})
    api = Client(shop.app.test_client(), READER)
    assert api.get("/tasks?payload_path=user.password&payload_value=secret").status_code == 422
    writer = Client(shop.app.test_client(), WRITER)
    only = {"payload_path": "user.password", "payload_value": "secret"}
    assert writer.post("/tasks/bulk/cancel", json={"filter": only, "dry_run": True}).status_code == 422


def test_what_can_not_be_read_or_stored_is_no_fault_of_the_server(shop: Shop, api: Client) -> None:
    """Deep nesting, thousands of digits and NUL are answered with what is wrong."""
    as_json = {"Content-Type": "application/json"}
    deep = '{"type": "a", "payload": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert api.post("/tasks", data=deep, headers=as_json).status_code in (400, 422)
    assert api.post("/tasks", data='{"type": "a", "payload": ' + "9" * 5000 + "}", headers=as_json).status_code in (400, 422)
    for answer in (api.post("/types/a%00b/resume"), api.get("/schedules/a%00b"), api.post("/types/a%00b/pause", json={})):
        assert answer.status_code in (200, 404, 422)
    assert shop.tasks() == []


def test_the_guard_may_know_tokens_of_the_app(make_shop: MakeShop) -> None:
    """A bearer token that is none of the engine's is the guard's business, and no excuse for a missing CSRF token."""
    shop = make_shop(**SETTINGS)
    shop.engine.admin_guard(lambda action: request.headers["Authorization"] == "Bearer of the app")
    client = shop.app.test_client()
    assert Client(client, "of the app").get("/tasks").status_code == 200
    assert Client(client, "of nobody").get("/tasks").status_code == 403
    assert Client(client, "of the app").post("/tasks", json={"type": "a"}, headers=BROWSER).status_code == 403
    assert Client(client, WRITER).post("/tasks", json={"type": "a"}, headers=BROWSER).status_code == 201

"""``flask taskengine check``: what is wrong with a deployment, by a host that has it."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine.cli import taskengine
from flask_taskengine.runtime import deployment
from flask_taskengine.store import nodes

from ..support.hosts import Host, MakeApp

Found = dict[str, list[dict[str, str]]]


def check(host: Host, *arguments: str) -> tuple[int, Found]:
    """Run the command; return the exit code and the findings by what they are about."""
    result = host.app.test_cli_runner().invoke(taskengine, ["check", "--json", *arguments])
    value = json.loads(result.output)
    assert value["ok"] == (result.exit_code == 0)
    found: Found = {}
    for finding in value["findings"]:
        found.setdefault(finding["about"], []).append(finding)
    return result.exit_code, found


def levels(found: Found) -> dict[str, list[str]]:
    """Return the levels of the findings."""
    return {about: [finding["level"] for finding in findings] for about, findings in found.items()}


def execute(host: Host, statement: str) -> None:
    """Change the database behind the engine's back."""
    with host.app.app_context():
        host.db.session.execute(sa.text(statement))
        host.db.session.commit()


def enqueue(host: Host, *types: str) -> None:
    """Write a task of each type."""
    with host.app.app_context():
        for task_type in types:
            host.engine.enqueue(task_type)
        host.db.session.commit()


def join(host: Host, *types: str) -> None:
    """Write the row of a node that is alive and knows the types."""
    row: dict[str, Any] = {"id": "web:1:a", "label": "web", "host": "web", "pid": 1, "version": "1", "concurrency": 1}
    with host.app.app_context():
        connection = host.db.session.connection()
        tables = host.engine.host(host.app).dialect(connection.dialect.name).tables
        nodes.register(connection, tables, row | {"types": types, "limits": {}})
        host.db.session.commit()


def test_a_sound_deployment_passes(make_app: MakeApp, database_url: str) -> None:
    """Everything that was looked at is named, all of it is well, and the exit code is 0."""
    host = make_app(database_url)
    enqueue(host, "note")
    join(host, "note")
    code, found = check(host, "--strict")
    assert code == 0
    assert levels(found) == {
        about: ["ok"] for about in ("settings", "pool", "database", "clock", "schema", "workers", "health", "wake-ups")
    }


def test_a_database_that_was_not_migrated(make_app: MakeApp, empty_database_url: str) -> None:
    """The schema is the error; what needs the schema is not looked at."""
    code, found = check(make_app(empty_database_url))
    assert code == 1
    assert levels(found)["schema"] == ["error"]
    assert found["schema"][0]["remedy"] == "run `flask taskengine migrate`"
    assert "workers" not in found


def test_a_trigger_that_was_dropped(make_app: MakeApp, postgresql_url: str) -> None:
    """Without it a row inserted by hand wakes nobody; migrate mends it."""
    host = make_app(postgresql_url)
    with host.app.app_context():
        trigger = host.db.session.execute(sa.text("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")).scalars().first()
    execute(host, f'DROP TRIGGER "{trigger}" ON taskengine_task')
    code, found = check(host)
    assert code == 1
    assert levels(found)["schema"] == ["error"]
    assert "trigger" in found["schema"][0]["text"]
    assert host.app.test_cli_runner().invoke(taskengine, ["migrate"]).output.startswith("mended: ")
    assert levels(check(host)[1])["schema"] == ["ok"]


def test_tasks_whose_type_no_live_node_knows(make_app: MakeApp, database_url: str) -> None:
    """They are named, and the remedy depends on whether this app's code knows them; a scheduled task is not due."""
    host = make_app(database_url)
    host.engine.task("ours")(lambda payload: None)
    enqueue(host, "known", "ours", "lost")
    with host.app.app_context():
        host.engine.enqueue_after("scheduled", None, "1h")
        host.db.session.commit()
    join(host, "known")
    code, found = check(host)
    assert code == 1
    [finding] = found["types"]
    assert finding["level"] == "error"
    assert finding["text"].endswith(": lost, ours")
    assert finding["remedy"].startswith("this app knows ours: restart the workers")
    execute(host, "DELETE FROM taskengine_task WHERE type = 'ours'")
    assert "TASKENGINE_UNKNOWN_TYPE_GRACE" in check(host)[1]["types"][0]["remedy"]


def test_no_live_worker(make_app: MakeApp, database_url: str) -> None:
    """An error once tasks are due, a warning before; a node whose lease is over does not count."""
    host = make_app(database_url)
    host.engine.task("ours")(lambda payload: None)
    join(host, "ours")
    execute(host, "UPDATE taskengine_node SET heartbeat_at = '2020-01-01 00:00:00.000'")
    code, found = check(host)
    assert (code, levels(found)["workers"]) == (0, ["warning"])
    assert check(host, "--strict")[0] == 1
    enqueue(host, "ours")
    code, found = check(host)
    assert (code, levels(found)["workers"]) == (1, ["error"])
    assert "types" not in found
    enqueue(host, "lost")
    assert check(host)[1]["types"][0]["text"].endswith(": lost")


def test_doubtful_settings(make_app: MakeApp, sqlite_url: str) -> None:
    """Each of the settings' own warnings is one."""
    code, found = check(make_app(sqlite_url, TASKENGINE_LEASE=4, TASKENGINE_HEARTBEAT_INTERVAL=1, TASKENGINE_POLL_INTERVAL=0))
    assert code == 0
    assert levels(found)["settings"] == ["warning", "warning"]
    assert found["settings"][0]["text"].startswith("TASKENGINE_LEASE is 4 s")


@pytest.mark.parametrize("ahead", [-60, 60])
def test_clocks_that_differ(make_app: MakeApp, database_url: str, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """A warning that says by how much and in which direction; nothing depends on it."""
    host = make_app(database_url)
    monkeypatch.setattr(deployment, "time", SimpleNamespace(time=lambda: time.time() - ahead))
    code, found = check(host)
    assert (code, levels(found)["clock"]) == (0, ["warning"])
    assert ("ahead of" if ahead > 0 else "behind") in found["clock"][0]["text"]
    assert "60.0 s" in found["clock"][0]["text"]


@pytest.mark.parametrize(("wakeup", "level", "code"), [("auto", "warning", 0), ("notify", "error", 1), ("poll", "ok", 0)])
def test_wake_ups_that_do_not_arrive(make_app: MakeApp, postgresql_url: str, wakeup: str, level: str, code: int) -> None:
    """As behind a pooler; the poll is left, which is an error only where notifications were demanded."""
    host = make_app(postgresql_url, TASKENGINE_WAKEUP=wakeup, TASKENGINE_LISTEN_URL="postgresql://nobody@127.0.0.1:1/none")
    answered, found = check(host)
    assert (answered, levels(found)["wake-ups"]) == (code, [level])
    assert "by poll" in found["wake-ups"][0]["text"]


def test_the_check_needs_one_connection_only(make_app: MakeApp, database_url: str) -> None:
    """A pool of one is a finding, not a dead end."""
    host = make_app(database_url, SQLALCHEMY_ENGINE_OPTIONS={"pool_size": 1, "max_overflow": 0, "pool_timeout": 1})
    code, found = check(host)
    assert code == 0
    assert levels(found)["pool"] == ["warning"]
    assert levels(found)["wake-ups"] == ["ok"]


def test_connections_that_commit_by_themselves(make_app: MakeApp, database_url: str) -> None:
    """No promise of the engine holds on them."""
    code, found = check(make_app(database_url, SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": "AUTOCOMMIT"}))
    assert (code, levels(found)["isolation"]) == (1, ["error"])


def test_a_strict_isolation_is_worth_a_word(make_app: MakeApp, postgresql_url: str) -> None:
    """What is refused for it counts as a failed attempt."""
    code, found = check(make_app(postgresql_url, SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": "SERIALIZABLE"}))
    assert (code, levels(found)["database"]) == (0, ["ok", "warning"])
    assert "SERIALIZABLE" in found["database"][1]["text"]


def test_sqlite_without_its_pragmas(make_app: MakeApp, empty_sqlite_url: str) -> None:
    """The journal mode and a short wait for the writer are doubtful."""
    host = make_app(empty_sqlite_url, TASKENGINE_SQLITE_PRAGMAS=False, SQLALCHEMY_ENGINE_OPTIONS={"connect_args": {"timeout": 0.1}})
    _, found = check(host)
    assert levels(found)["database"] == ["ok", "warning", "warning"]
    assert "journal mode delete" in found["database"][1]["text"]


def test_sqlite_in_memory(make_app: MakeApp) -> None:
    """No other process sees it."""
    code, found = check(make_app("sqlite://"))
    assert (code, levels(found)["database"]) == (1, ["error"])


def test_a_database_that_is_down(make_app: MakeApp) -> None:
    """One error; nothing that needs the database is looked at."""
    code, found = check(make_app("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    assert code == 1
    assert levels(found) == {"settings": ["ok"], "pool": ["ok"], "database": ["error"]}


def test_people_read_one_line_for_each_finding_and_its_remedy(make_app: MakeApp, empty_sqlite_url: str) -> None:
    """The level stands first; a remedy stands below what it mends. No password is shown."""
    host = make_app(empty_sqlite_url)
    lines = host.app.test_cli_runner().invoke(taskengine, ["check"]).output.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("error "))
    assert lines[at].split()[:2] == ["error", "schema"]
    assert lines[at + 1].strip() == "-> run `flask taskengine migrate`"

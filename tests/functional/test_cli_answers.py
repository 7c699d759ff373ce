"""What the commands answer, looked at closely; each runs in this process, against a real database."""

from __future__ import annotations

import json
import time
from typing import Any

import click
import pytest
import sqlalchemy as sa
from click.testing import Result
from flask import Flask

from flask_taskengine import Reject
from flask_taskengine.cli import taskengine

from ..support.hosts import Host, MakeApp
from .cli_host import Mail


@pytest.fixture
def host(make_app: MakeApp, database_url: str) -> Host:
    """Make a host on each database."""
    return make_app(database_url, TASKENGINE_REDACT=["token"])


def run(app: Flask, *arguments: str) -> Result:
    """Run a command."""
    return app.test_cli_runner().invoke(taskengine, arguments)


def answer(app: Flask, *arguments: str) -> Any:
    """Run a command with --json and return what it answers."""
    result = run(app, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def execute(host: Host, statement: str) -> None:
    """Change the database behind the engine's back."""
    with host.app.app_context():
        host.db.session.execute(sa.text(statement))
        host.db.session.commit()


def test_list_filters_and_pages(host: Host) -> None:
    """Newest first; several statuses; type, priority, limit and offset together."""
    for number in range(6):
        answer(host.app, "enqueue", "even" if number % 2 == 0 else "odd", str(number), "--priority", str(number // 3))
    answer(host.app, "cancel", "1")

    def ids(*arguments: str) -> list[int]:
        return [task["id"] for task in answer(host.app, "list", *arguments)]

    assert ids() == [6, 5, 4, 3, 2, 1]
    assert ids("--status", "cancelled") == [1]
    assert ids("--status", "CANCELLED", "--status", "PENDING", "--type", "even") == [5, 3, 1]
    assert ids("--priority", "1", "--type", "odd") == [6, 4]
    assert ids("--limit", "2", "--offset", "1") == [5, 4]
    assert "there may be more: --offset 3" in run(host.app, "list", "--limit", "2", "--offset", "1").output
    assert run(host.app, "list", "--type", "none").output == "no tasks\n"
    assert run(host.app, "list", "--limit", "501").exit_code == 2


def test_list_says_when_tasks_are_due(host: Host) -> None:
    """Due since, due in, running since and ended ago, by the database's clock."""
    answer(host.app, "enqueue", "now")
    answer(host.app, "enqueue", "later", "--after", "90m")
    answer(host.app, "enqueue", "gone")
    answer(host.app, "cancel", "3")
    lines = run(host.app, "list").output.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["gone", "later", "now"]
    assert "ended 0s ago" in lines[1]
    assert "due in 90m" in lines[2]
    assert "due for 0s" in lines[3]


def test_ids_and_columns_stay_whole_and_aligned(host: Host) -> None:
    """However long a type is, each task is one line and every column begins where its heading does."""
    answer(host.app, "enqueue", "t" * 200)
    answer(host.app, "enqueue", "short")
    heading, *lines = run(host.app, "list").output.splitlines()
    assert len(lines) == 2
    assert all(line[heading.index("STATUS") :].startswith("PENDING ") for line in lines)


def test_times_are_shown_in_the_zone_of_this_machine(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """People read local time and an age; programs read UTC."""
    answer(host.app, "enqueue", "note", "--at", "2030-07-01T08:30:00+02:00")
    [task] = answer(host.app, "list")
    assert task["available_at"] == "2030-07-01T06:30:00Z"
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        assert "2030-07-01 12:15:00 (in " in run(host.app, "show", "1").output
    finally:
        monkeypatch.undo()
        time.tzset()


def test_enqueue_takes_every_option_of_the_verb(host: Host) -> None:
    """Priority, key, attempts and times arrive in the row; an existing key answers with the existing task."""
    first = answer(host.app, "enqueue", "note", "[1]", "--priority", "-2", "--key", "k", "--max-attempts", "9")
    again = answer(host.app, "enqueue", "note", "--key", "k")
    assert first == {"id": again["id"], "created": True}
    assert again["created"] is False
    shown = answer(host.app, "show", str(first["id"]))
    assert (shown["priority"], shown["idempotency_key"], shown["max_attempts"], shown["payload"]) == (-2, "k", 9, [1])
    assert "has this key already" in run(host.app, "enqueue", "note", "--key", "k").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["not json"], "it is no JSON"),
        (["1", "--at", "2030-01-01T00:00"], "it has no time zone: give 2030-01-01T00:00:00"),
        (["1", "--at", "soon"], "give a time such as"),
        (["1", "--after", "soon"], "is no duration"),
        (["1", "--after", "1s", "--at", "2030-01-01T00:00Z"], "exclude each other"),
        (["1", "--priority", "high"], "not a valid integer"),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_give_instead(make_app: MakeApp, sqlite_url: str, arguments: list[str], said: str) -> None:
    """The exit code is 2 and nothing is written."""
    app = make_app(sqlite_url).app
    result = run(app, "enqueue", "note", *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert answer(app, "list") == []


def test_what_the_engine_refuses_is_one_line(make_app: MakeApp, sqlite_url: str) -> None:
    """A wrong payload, a wrong key and a wrong status end with exit code 1, without a traceback."""
    host = make_app(sqlite_url)

    def mail(payload: Mail) -> None:
        pass

    host.engine.task("mail")(mail)
    for arguments, said in [
        (["enqueue", "mail", '{"to": 3}'], "payload of task type 'mail': "),
        (["enqueue", "note", "--key", ""], "key"),
        (["enqueue", "note", "NaN"], "payload of task type 'note': "),
    ]:
        result = run(host.app, *arguments)
        assert result.exit_code == 1, result.output
        assert result.output.startswith("Error: ")
        assert said in result.output
        assert result.output.count("\n") == 1
    assert answer(host.app, "list") == []
    answer(host.app, "enqueue", "note")
    pending = run(host.app, "retry", "1")
    assert pending.exit_code == 1
    assert "task 1 is PENDING: it can not be retried" in pending.output


def test_show_tells_the_failed_attempts(host: Host) -> None:
    """Class, message, node, time and traceback of each, oldest first; secrets in the payload are hidden."""
    answer(host.app, "enqueue", "note", '{"token": "secret", "to": "a\\u001b[31mb"}')
    execute(
        host, "UPDATE taskengine_task SET status = 'DEAD', attempts = 2, claims = 2, finished_at = CURRENT_TIMESTAMP, last_error = 'E: b'"
    )
    for number in (1, 2):
        execute(
            host,
            "INSERT INTO taskengine_attempt (task_id, claims, attempt, node, error_class, message, traceback)"
            f" VALUES (1, {number}, {number}, 'web:1', 'E', 'm{number}', 'Traceback:\n  line {number}')",
        )
    shown = answer(host.app, "show", "1")
    assert [(one["attempt"], one["error_class"], one["message"]) for one in shown["failed_attempts"]] == [(1, "E", "m1"), (2, "E", "m2")]
    assert shown["payload"]["token"] == "***"
    text = run(host.app, "show", "1").output
    assert "attempts    2 of 5" in text
    assert "failed attempt 1  E: m1" in text
    assert "line 2" in text
    assert "secret" not in text
    assert "\x1b" not in text


def test_retry_dead_takes_all_or_those_of_a_type(host: Host) -> None:
    """The answer says how many."""
    for task_type in ("a", "a", "b", "c"):
        answer(host.app, "enqueue", task_type)
    execute(host, "UPDATE taskengine_task SET status = 'DEAD', attempts = 5, finished_at = CURRENT_TIMESTAMP WHERE type <> 'c'")
    assert answer(host.app, "retry-dead", "--type", "a", "--reset-attempts") == {"requeued": 2}
    assert run(host.app, "retry-dead").output == "1 tasks are PENDING again\n"
    assert {(task["status"], task["attempts"]) for task in answer(host.app, "list")} == {("PENDING", 0), ("PENDING", 5)}


def test_cancel_of_a_running_task_says_that_it_was_asked(host: Host) -> None:
    """The task stays RUNNING until its handler has ended."""
    answer(host.app, "enqueue", "note")
    execute(host, "UPDATE taskengine_task SET status = 'RUNNING', claimed_at = CURRENT_TIMESTAMP, claims = 1, attempts = 1")
    assert answer(host.app, "cancel", "1") == {"id": 1, "status": "RUNNING"}
    assert run(host.app, "cancel", "1").output == "task 1 is running: it has been asked to end\n"
    assert "cancel asked" in run(host.app, "list").output
    assert run(host.app, "delete", "1").exit_code == 1


def test_stats_counts_and_names_the_nodes(host: Host) -> None:
    """By type and status; the age of the oldest due task; live nodes only, with label, heartbeat and types."""
    for _ in range(3):
        answer(host.app, "enqueue", "mail")
    answer(host.app, "enqueue", "report", "--after", "1h")
    answer(host.app, "cancel", "3")
    execute(
        host,
        "INSERT INTO taskengine_node (id, label, host, pid, version, concurrency, types, limits) VALUES"
        """ ('web:7:aa', 'web', 'web', 7, '1', 4, '["mail", "report"]', '{}')""",
    )
    execute(
        host,
        "INSERT INTO taskengine_node (id, label, host, pid, version, concurrency, types, limits, expired_at) VALUES"
        " ('gone:7:aa', 'gone', 'gone', 7, '1', 4, '[]', '{}', CURRENT_TIMESTAMP)",
    )
    stats = answer(host.app, "stats")
    assert stats["tasks"] == {"mail": {"CANCELLED": 1, "PENDING": 2}, "report": {"PENDING": 1}}
    assert list(stats["oldest_due_age"]) == ["mail"]
    assert 0 <= stats["oldest_due_age"]["mail"] < 60
    [node] = stats["nodes"]
    assert (node["id"], node["label"], node["types"], node["concurrency"]) == ("web:7:aa", "web", ["mail", "report"], 4)
    assert 0 <= node["heartbeat_age"] < 60
    counted, alive = run(host.app, "stats").output.split("\n\n")
    assert counted.splitlines()[1].split() == ["mail", "2", "0", "0", "0", "0", "1", "0s"]
    assert "mail, report" in alive
    assert "gone" not in alive


def test_a_failed_command_writes_nothing(make_app: MakeApp, sqlite_url: str) -> None:
    """It rolls back: the session of whoever called it in this process is usable."""
    host = make_app(sqlite_url)
    with host.app.app_context():
        assert run(host.app, "enqueue", "note", "--key", "x" * 300).exit_code == 1
        assert not host.db.session().in_transaction()


def test_an_unexpected_error_is_json_as_well(make_app: MakeApp, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value says what it was; the exception itself is not hidden from whoever reads the standard error."""
    host = make_app(sqlite_url)

    def fail(*arguments: object, **options: object) -> None:
        raise Reject("unexpected")

    monkeypatch.setattr(host.engine, "enqueue", fail)
    result = run(host.app, "enqueue", "note", "--json")
    assert json.loads(result.output) == {"error": "Reject: unexpected"}
    assert isinstance(result.exception, Reject)


def test_every_command_is_explained_with_an_example() -> None:
    """The help of each has a first sentence that fits the list of commands, options that say what they do, and an example."""
    for name, command in taskengine.commands.items():
        help_text = command.help or ""
        assert len(help_text.splitlines()[0]) < 45, name
        assert f"Example: flask taskengine {name}" in help_text
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, (name, option.name)

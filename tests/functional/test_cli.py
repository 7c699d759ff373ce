"""The commands, by the real executable."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from ..support.commands import Answer, RunFlask, run_flask

HOST = "tests.functional.cli_host:create_app"
DOWN = "postgresql+psycopg://nobody@127.0.0.1:1/none"


@pytest.fixture
def flask(tmp_path: Path) -> RunFlask:
    """Run ``flask taskengine`` for the host of these tests."""

    def run(*arguments: str, url: str | None = None, app: str = HOST, stdin: str = "", **env: str) -> Answer:
        variables = env | ({"FLASK_SQLALCHEMY_DATABASE_URI": url} if url else {})
        return run_flask("taskengine", *arguments, app=app, folder=tmp_path, env=variables, stdin=stdin)

    return run


def test_the_life_of_a_task_by_command(flask: RunFlask, database_url: str) -> None:
    """Each command does what it says in a transaction of its own, and the next one sees it."""
    made = flask("enqueue", "note", '{"text": "Grüße"}', "--priority", "3", "--json", url=database_url)
    assert made.json == {"id": 1, "created": True}

    listed = flask("list", url=database_url)
    heading, row = listed.out.splitlines()
    assert heading.split() == ["ID", "TYPE", "STATUS", "PRIORITY", "ATTEMPTS", "WHEN", "CREATED", "LAST", "ERROR"]
    assert row.split()[:6] == ["1", "note", "PENDING", "3", "0", "due"]

    shown = flask("show", "1", "--json", url=database_url).json
    assert (shown["payload"], shown["priority"], shown["failed_attempts"]) == ({"text": "Grüße"}, 3, [])

    assert flask("cancel", "1", url=database_url).out == "task 1 is CANCELLED\n"
    assert flask("retry", "1", "--json", url=database_url).json == {"id": 1, "status": "PENDING"}
    assert flask("delete", "1", url=database_url).out == "task 1 is deleted\n"

    gone = flask("show", "1", url=database_url)
    assert (gone.code, gone.out) == (1, "")
    assert gone.err.startswith("Error: no task has the id 1: ")
    assert gone.err.count("\n") == 1


def test_migrate_brings_the_schema_and_then_has_nothing_to_do(flask: RunFlask, empty_database_url: str) -> None:
    """The second run changes nothing and says so; both succeed."""
    first, second = (flask("migrate", url=empty_database_url) for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith("migrated from an empty database to revision ")
    assert second.out.startswith("nothing to do: the schema is at revision ")
    assert flask("enqueue", "note", url=empty_database_url).code == 0


def test_migrate_sql_prints_a_script_that_makes_the_whole_schema(flask: RunFlask, empty_database_url: str) -> None:
    """What it prints runs on an empty database as it is, and nothing is left to migrate."""
    script = flask("migrate", "--sql", url=empty_database_url).out
    url = sa.make_url(empty_database_url)
    if url.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(url.database))) as file:
            file.executescript(script)
    else:
        with psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True) as connection:
            connection.execute(script)
    assert flask("migrate", url=empty_database_url).out.startswith("nothing to do")


def test_migrate_sql_needs_no_database(flask: RunFlask) -> None:
    """The script is that of the app's database, which is not asked."""
    answer = flask("migrate", "--sql", url=DOWN)
    assert answer.code == 0
    assert "CREATE TABLE taskengine_task " in answer.out
    assert "JSONB" in answer.out


@pytest.mark.parametrize("arguments", [("enqueue", "note"), ("migrate",)])
def test_a_database_that_is_down_is_one_line(flask: RunFlask, arguments: tuple[str, ...]) -> None:
    """No traceback: what happened, and what to look at."""
    answer = flask(*arguments, url=DOWN)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("Error: the database does not answer: ")
    assert "SQLALCHEMY_DATABASE_URI" in answer.err
    assert answer.err.count("\n") == 1


def test_errors_are_json_too(flask: RunFlask, sqlite_url: str) -> None:
    """With --json the standard output holds one value whatever happens, and nothing else is said."""
    for arguments, code in [(("show", "7"), 1), (("list", "--status", "LOST"), 2)]:
        answer = flask(*arguments, "--json", url=sqlite_url)
        assert (answer.code, answer.err) == (code, "")
        assert list(answer.json) == ["error"]
    down = flask("list", "--json", url=DOWN)
    assert (down.code, list(down.json), down.err) == (1, ["error"], "")


def test_a_database_that_was_not_migrated_says_so(flask: RunFlask, empty_database_url: str) -> None:
    """The remedy is named, not the driver's error."""
    answer = flask("list", url=empty_database_url)
    assert answer.code == 1
    assert answer.err == "Error: the database has no table taskengine_version: run `flask taskengine migrate`\n"


def test_settings_come_from_the_environment(flask: RunFlask, empty_sqlite_url: str) -> None:
    """What ``from_prefixed_env`` reads is respected by every command."""
    settings = {"FLASK_TASKENGINE_TABLE_PREFIX": "own_", "FLASK_TASKENGINE_REDACT": '["token"]'}
    assert flask("migrate", url=empty_sqlite_url, **settings).code == 0
    assert flask("enqueue", "note", '{"token": "secret", "n": [{"token": 1}]}', url=empty_sqlite_url, **settings).code == 0
    with closing(sqlite3.connect(str(sa.make_url(empty_sqlite_url).database))) as file:
        assert file.execute("SELECT payload FROM own_task").fetchall() == [('{"token":"secret","n":[{"token":1}]}',)]
    shown = flask("show", "1", "--json", url=empty_sqlite_url, **settings).json
    assert shown["payload"] == {"token": "***", "n": [{"token": "***"}]}


def test_wrong_settings_are_one_error_that_lists_every_fault(flask: RunFlask, sqlite_url: str) -> None:
    """No traceback although the app could not be made; the exit code is 1."""
    wrong = {"FLASK_TASKENGINE_CONCURRENCY": "0", "FLASK_TASKENGINE_LEAS": "5s", "FLASK_TASKENGINE_WAKEUP": "never"}
    answer = flask("list", url=sqlite_url, **wrong)
    assert (answer.code, answer.out) == (1, "")
    assert "Traceback" not in answer.err
    for fault in ("TASKENGINE_CONCURRENCY: ", "TASKENGINE_WAKEUP: ", "did you mean TASKENGINE_LEASE?"):
        assert fault in answer.err


def test_an_app_without_an_engine_is_told_so(flask: RunFlask, sqlite_url: str) -> None:
    """The error names what to call."""
    bare = flask("list", url=sqlite_url, app="tests.functional.cli_host:create_app_without_engine")
    assert (bare.code, bare.err.count("\n")) == (1, 1)
    assert "call TaskEngine(app, db)" in bare.err
    lost = flask("list", app="tests.functional.cli_host:create_app_without_database")
    assert (lost.code, lost.err.count("\n")) == (1, 1)
    assert "db.init_app(app)" in lost.err


@pytest.mark.parametrize("app", ["tests.functional.nowhere:create_app", "tests.functional.cli_host:create_app_that_fails"])
def test_an_app_that_does_not_load_fails_as_with_any_command_of_flask(flask: RunFlask, tmp_path: Path, app: str) -> None:
    """The exit code and the last line are those of ``flask routes``; the help is there all the same."""
    ours = flask("list", app=app)
    theirs = run_flask("routes", app=app, folder=tmp_path, env={})
    assert (ours.code, ours.out, ours.err.splitlines()[-1]) == (theirs.code, theirs.out, theirs.err.splitlines()[-1])
    assert flask("list", "--help", app=app).code == 0
    assert list(flask("list", "--json", app=app).json) == ["error"]


def test_a_payload_may_come_from_the_standard_input(flask: RunFlask, sqlite_url: str) -> None:
    """A dash stands for it, for payloads that are too long or too secret for a command line."""
    payload = {"text": "x" * 200_000}
    made = flask("enqueue", "note", "-", "--json", url=sqlite_url, stdin=json.dumps(payload))
    assert made.json["created"] is True
    assert flask("show", "1", "--json", url=sqlite_url).json["payload"] == payload

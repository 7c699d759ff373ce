"""Pauses, acts on many tasks and the live view, from the shell."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from flask_taskengine.engine import bulk

from ..support.hosts import Host, MakeApp
from .test_cli_answers import answer, execute, run


@pytest.fixture
def host(make_app: MakeApp, database_url: str) -> Host:
    """Make a host on each database."""
    return make_app(database_url)


def test_r27_pause_and_resume_by_command(host: Host) -> None:
    """A type or everything; who and why are shown where somebody asks."""
    answer(host.app, "enqueue", "a")
    assert answer(host.app, "pause", "a", "--reason", "broken") == {"type": "a", "paused": True}
    why = answer(host.app, "why", "1")
    assert why["code"] == "type_paused"
    assert "broken" in why["text"]
    assert answer(host.app, "resume", "a")["was_paused"] is True
    assert answer(host.app, "resume", "a")["was_paused"] is False
    assert answer(host.app, "pause") == {"type": "*", "paused": True}
    assert answer(host.app, "why", "1")["code"] == "all_paused"
    assert "every type goes on" in run(host.app, "resume").output


def test_bulk_by_command(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run first; then all of them, batch by batch; without a word of which ones it is refused."""
    monkeypatch.setattr(bulk, "BATCH", 2)
    for _ in range(5):
        answer(host.app, "enqueue", "a")
    execute(host, "UPDATE taskengine_task SET status = 'DEAD', finished_at = updated_at, last_error = 'Timeout' WHERE id > 1")
    dry = answer(host.app, "bulk", "retry", "--status", "dead", "--error", "TIME", "--dry-run")
    assert (dry["count"], len(dry["sample"])) == (4, 4)
    assert "4 tasks, such as" in run(host.app, "bulk", "retry", "--type", "a", "--dry-run").output
    refused = run(host.app, "bulk", "delete")
    assert refused.exit_code == 1
    assert "--all" in refused.output
    assert answer(host.app, "bulk", "retry", "--error", "timeout") == {"changed": 4}
    assert answer(host.app, "bulk", "cancel", "--type", "b") == {"changed": 0}
    assert "5 tasks are cancelled" in run(host.app, "bulk", "cancel", "--all").output
    assert answer(host.app, "bulk", "delete", "--status", "CANCELLED") == {"changed": 5}
    assert answer(host.app, "list") == []


def test_top_shows_the_queue(host: Host) -> None:
    """What waits, what is paused, what has ended lately."""
    assert "nothing to do" in run(host.app, "top", "--once").output
    for _ in range(3):
        answer(host.app, "enqueue", "a")
    answer(host.app, "pause", "a")
    execute(host, "UPDATE taskengine_task SET status = 'SUCCEEDED', finished_at = updated_at, claimed_at = updated_at WHERE id = 1")
    screen = run(host.app, "top", "--once").output
    (line,) = [line for line in screen.splitlines() if "a (paused)" in line]
    assert line.split()[2] == "2"
    assert line.split()[5] == "1"


@pytest.mark.timeout(120)
def test_bench_measures_and_leaves_nothing_behind(host: Host) -> None:
    """Enqueues, runs and latency, in tables of its own; what the app has is as it was."""
    answer(host.app, "enqueue", "a")

    def everything() -> list[str]:
        with host.app.app_context():
            return sorted(sa.inspect(host.db.engine).get_table_names())

    before = everything()
    figures = answer(host.app, "bench", "--tasks", "100", "--concurrency", "4")
    assert everything() == before
    assert (figures.pop("tasks"), figures.pop("concurrency")) == (100, 4)
    assert figures.pop("database") == host.engine.host(host.app).sql_engine().dialect.name
    assert len(figures) == 7
    assert all(value > 0 for value in figures.values()), figures
    assert [task["status"] for task in answer(host.app, "list")] == ["PENDING"]


def test_every_command_is_documented(host: Host) -> None:
    """The reference has them all."""
    reference = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    for name in ("bench", "bulk", "pause", "resume", "top"):
        assert f"flask taskengine {name}" in reference

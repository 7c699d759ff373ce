"""What is announced and warned about around a commit, in requests and sessions of a real host."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
import sqlalchemy as sa
from flask import Flask, abort
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import Session

from flask_taskengine import TaskEngine
from tests.support.shop import Events, Shop


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about lost tasks."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING and "lost" in record.getMessage()]


def test_task_enqueued_follows_the_commit(shop: Shop, events: Events) -> None:
    """One signal per new task, after the commit, in order; an existing key is no new task."""
    with shop.app.app_context():
        first = shop.engine.enqueue("email", idempotency_key="k")
        again = shop.engine.enqueue("email", idempotency_key="k")
        many = shop.engine.enqueue_many([{"type": "report"}, {"type": "email", "idempotency_key": "k"}])
        assert events.seen == []
        shop.db.session.commit()
    assert again.created is False
    assert [event for event in events.seen if event[0] == "task_enqueued"] == [
        ("task_enqueued", {"task_id": first.id, "task_type": "email"}),
        ("task_enqueued", {"task_id": many[0].id, "task_type": "report"}),
    ]
    assert [fields["task_id"] for fields in events.of("task_deduplicated")] == [first.id, first.id]


def test_task_enqueued_is_not_sent_for_what_is_rolled_back(shop: Shop, events: Events) -> None:
    """Neither for a transaction, nor for a savepoint, nor for a released savepoint in a rolled back transaction."""
    with shop.app.app_context():
        shop.engine.enqueue("email")
        shop.db.session.rollback()
        with shop.db.session.begin_nested():
            shop.engine.enqueue("email")
        shop.db.session.rollback()
        kept = shop.engine.enqueue("email")
        with shop.db.session.begin_nested() as savepoint:
            shop.engine.enqueue("email")
            savepoint.rollback()
        shop.db.session.commit()
    assert [fields["task_id"] for fields in events.of("task_enqueued")] == [kept.id]


def test_task_enqueued_of_another_session(shop: Shop, events: Events) -> None:
    """A Session of the caller's own announces at its own commit."""
    with Session(shop.outside) as session:
        shop.engine.enqueue("email", session=session)
        assert events.seen == []
        session.commit()
        assert events.names() == ["task_enqueued"]


def test_a_receiver_may_use_the_database(shop: Shop) -> None:
    """When the signal comes, the row can be read by everybody."""
    seen: list[str] = []
    from flask_taskengine.signals import task_enqueued

    def receive(_: object, task_id: int, **fields: object) -> None:
        seen.append(shop.task(task_id).status)

    with task_enqueued.connected_to(receive, sender=shop.engine):
        shop.enqueue("email")
    assert seen == ["PENDING"]


@pytest.mark.parametrize("first", ["db", "engine"])
def test_a_request_that_forgets_to_commit_is_warned_about_once(database_url: str, caplog: pytest.LogCaptureFixture, first: str) -> None:
    """The most common beginner's fault says so in one line; a request that fails does not, whichever extension came first."""
    app, db, engine = Flask("host"), SQLAlchemy(), TaskEngine()
    app.config["SQLALCHEMY_DATABASE_URI"] = database_url
    for extension in (db, engine) if first == "db" else (engine, db):
        extension.init_app(app)

    @app.get("/<end>")
    def view(end: str) -> str:
        engine.enqueue("email")
        engine.enqueue("email")
        match end:
            case "committed":
                db.session.commit()
            case "rolled back":
                db.session.rollback()
            case "refused":
                abort(409)
            case "failed":
                raise ValueError(end)
        return end

    client = app.test_client()
    for end in ("committed", "rolled back", "refused", "failed"):
        client.get(f"/{end}")
        assert lost(caplog) == []
    app.config["PROPAGATE_EXCEPTIONS"] = True
    with pytest.raises(ValueError, match="failed"):
        client.get("/failed")
    assert lost(caplog) == []
    client.get("/forgotten")
    assert ["2 enqueued task(s) are lost" in warning for warning in lost(caplog)] == [True]
    with app.app_context():
        db.engine.dispose()


@pytest.mark.parametrize("first", ["db", "engine"])
def test_a_savepoint_is_safe_whichever_extension_came_first(database_url: str, first: str) -> None:
    """The database is set up before its first transaction, also where the engine is initialised before Flask-SQLAlchemy."""
    app, db = Flask("host"), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = database_url
    engine = TaskEngine()
    if first == "db":
        db.init_app(app)
        engine.init_app(app, db)
    else:
        engine.init_app(app, db)
        db.init_app(app)
    with app.app_context():
        with db.session.begin_nested():
            made = engine.enqueue("email")
        db.session.rollback()
        assert engine.get(made.id) is None
        if db.engine.dialect.name == "sqlite":
            assert db.session.execute(sa.text("PRAGMA busy_timeout")).scalar() == 15000
        db.session.remove()
        db.engine.dispose()


def test_an_app_context_that_is_left_without_a_commit_is_warned_about(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A script that forgets its commit is told; one that fails in between is not."""
    with shop.app.app_context():
        shop.engine.enqueue("email")
    assert len(lost(caplog)) == 1
    with suppress(ValueError), shop.app.app_context():
        shop.engine.enqueue("email")
        raise ValueError("no")
    assert len(lost(caplog)) == 1

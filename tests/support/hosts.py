"""Host applications, made for one test."""

from __future__ import annotations

import importlib
import threading
from typing import Any, NamedTuple, Protocol

from flask import Flask
from flask_sqlalchemy import SQLAlchemy


class Host(NamedTuple):
    """A Flask application with its database and its task engine."""

    app: Flask
    db: SQLAlchemy
    engine: Any
    """The ``TaskEngine``."""


class MakeApp(Protocol):
    """What the fixture ``make_app`` returns."""

    def __call__(self, url: str, **config: Any) -> Host: ...


def make_host(url: str, **config: Any) -> Host:
    """Make a host on the database of ``url``; ``config`` goes into ``app.config``. Nothing connects yet."""
    app = Flask("host")
    app.config.update({"SQLALCHEMY_DATABASE_URI": url, "SECRET_KEY": "test", "TESTING": True} | config)
    db = SQLAlchemy(app)
    task_engine = getattr(importlib.import_module("flask_taskengine"), "TaskEngine", None)
    return Host(app, db, task_engine(app, db) if task_engine is not None else None)


def close_host(host: Host) -> None:
    """Give back the session and every connection of a host."""
    with host.app.app_context():
        host.db.session.remove()
        for engine in host.db.engines.values():
            engine.dispose()


def own_threads() -> list[str]:
    """Return the names of the engine's threads."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("taskengine-"))

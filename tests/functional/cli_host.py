"""Hosts for the commands' tests, configured by ``from_prefixed_env``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_taskengine import Reject, TaskEngine


@dataclass
class Mail:
    """A typed payload."""

    to: str
    copies: int = 1


def create_app() -> Flask:
    """Make a host with a few processors."""
    app = create_app_without_engine()
    engine = TaskEngine(app)

    @engine.task("note")
    def note(payload: Any) -> None:
        app.logger.info("noted %s", payload)

    @engine.task("mail")
    def mail(payload: Mail) -> None:
        pass

    @engine.task("refuse")
    def refuse(payload: Any) -> None:
        raise Reject("not this\none")

    return app


def create_app_without_engine() -> Flask:
    """Make a host that has a database only."""
    app = Flask("host")
    app.config.from_prefixed_env()
    SQLAlchemy(app)
    return app


def create_app_without_database() -> Flask:
    """Make a host that forgot Flask-SQLAlchemy."""
    app = Flask("host")
    TaskEngine(app)
    return app


def create_app_that_logs() -> Flask:
    """Make a host that has decided about logging itself."""
    logging.basicConfig(format="OWN %(levelname)s %(message)s", level=logging.INFO)
    return create_app()


def create_app_that_fails() -> Flask:
    """Fail as a host's own code may."""
    raise ZeroDivisionError("the host's own fault")

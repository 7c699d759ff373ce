"""A small shop: what an app with Flask-TaskEngine looks like."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flask import Flask

from .extensions import db, engine
from .views import shop

DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """Make the shop; ``DATABASE_URL`` and ``SHOP_FOLDER`` say where its data is. Connects to nothing.

    Args:
        config: put over everything else, for tests.
    """
    given = dict(config or {})
    app = Flask(__name__, instance_path=given.get("SHOP_FOLDER", os.environ.get("SHOP_FOLDER")))
    app.config.from_mapping(
        SQLALCHEMY_DATABASE_URI=database_url(os.environ.get("DATABASE_URL")),
        SHOP_FOLDER=app.instance_path,
        TASKENGINE_API_ENABLED=True,
    )
    app.config.from_prefixed_env()
    app.config.from_mapping(given)
    folder = Path(app.instance_path)
    folder.mkdir(parents=True, exist_ok=True)
    app.config.setdefault("SECRET_KEY", None)
    app.secret_key = app.secret_key or secret_key(folder)
    db.init_app(app)
    engine.init_app(app)
    app.register_blueprint(shop)
    app.cli.command("create-tables")(create_tables)
    return app


def secret_key(folder: Path) -> str:
    """Return what signs the forms: made once for all processes of this shop. A deployment gets its own from outside."""
    file = folder / "secret_key"
    with suppress(FileExistsError), file.open("x") as new:
        new.write(secrets.token_hex())
    return file.read_text() or "dev"


def create_tables() -> None:
    """Create the shop's own tables; those of the tasks come with ``flask taskengine migrate``."""
    db.create_all()


def database_url(given: str | None) -> str:
    """Return the URL as SQLAlchemy wants it, whatever a hosting platform calls PostgreSQL; by default a file in the instance folder."""
    if not given:
        return "sqlite:///shop.sqlite"
    scheme, separator, rest = given.partition("://")
    return DRIVERS.get(scheme, scheme) + separator + rest

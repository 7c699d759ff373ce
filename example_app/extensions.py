"""The extensions, made once and bound to an app by ``create_app``."""

from __future__ import annotations

from flask import request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase

from flask_taskengine import TaskEngine


class Model(DeclarativeBase):
    """The base of the shop's models."""


db = SQLAlchemy(model_class=Model)
engine = TaskEngine()


@engine.admin_guard
def on_this_machine(action: str) -> bool:
    """Let whoever sits at this machine use the dashboard. An app with a login asks it here."""
    return request.remote_addr in ("127.0.0.1", "::1")

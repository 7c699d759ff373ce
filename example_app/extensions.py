"""The extensions, made once and bound to an app by ``create_app``."""

from __future__ import annotations

from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase

from flask_taskengine import TaskEngine


class Model(DeclarativeBase):
    """The base of the shop's models."""


db = SQLAlchemy(model_class=Model)
engine = TaskEngine()

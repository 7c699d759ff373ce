"""The calls that say what this is."""

from __future__ import annotations

import platform
from dataclasses import fields
from importlib.metadata import version
from typing import Any

from flask import Response, request

from ..access import csrf_token, set_csrf_cookie
from ..settings import PREFIX, Settings
from . import answers as said
from .routing import Api
from .work import Work

api = Api("about")

_ANY = said.FreeSchema()


@api.call("GET", "/info", {200: _ANY})
def info(at: Work) -> Any:
    """Show versions, task types and settings; what is secret is left out."""
    return {
        "versions": {name: version(name) for name in ("flask-taskengine", "Flask", "SQLAlchemy")} | {"python": platform.python_version()},
        "database": at.connection.dialect.name,
        "types": list(at.host.registry.types()),
        "schedules": sorted(at.host.schedules),
        "settings": {
            PREFIX + one.name.upper(): str(getattr(at.host.settings, one.name)) for one in fields(Settings) if not one.metadata["secret"]
        },
    }


@api.call("GET", "/csrf", {200: _ANY})
def csrf(at: Work) -> Any:
    """Give a browser session the token which its other requests send as `X-CSRF-Token`."""
    token = csrf_token(request)
    answer = Response(f'{{"csrf_token": "{token}"}}', mimetype="application/json")
    set_csrf_cookie(at.host, request, answer, token)
    return answer

"""The admin blueprint: every call of the API, its document and the pages."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, request, url_for
from werkzeug.routing import PathConverter

from ..access import harden
from ..runtime.host import Host
from . import about, queues, schedules, tasks
from .describe import document
from .pages import add_pages
from .pages.frame import Pages
from .routing import Api, handler

NAME = "taskengine_name"
PARTS = (tasks.api, schedules.api, queues.api, about.api)


class _NameConverter(PathConverter):
    """Takes any text, slashes and line ends too: names of types and schedules are the app's."""

    regex = r"[\s\S]+?"
    part_isolating = False


def _document(host: Host) -> dict[str, Any]:
    return document(PARTS, _base(host))


def _base(host: Host) -> str:
    """Return where the API stands, as the browser sees it, also behind a proxy that takes a part of the path."""
    return f"{request.script_root}{host.settings.api_url_prefix}"


def make_blueprint(host: Host) -> Blueprint:
    """Return the blueprint of one app."""
    host.app.url_map.converters[NAME] = _NameConverter
    blueprint = Blueprint("taskengine", __name__, template_folder="templates", static_folder="static", static_url_path="/static")
    about_itself = Api("about")

    @about_itself.call("GET", "/openapi.json", {200: None})
    def openapi(at: object) -> object:
        """Describe the API."""
        return _document(host)

    for api in (*PARTS, about_itself):
        for call in api.calls:
            name = re.sub(r"\W+", "_", f"api_{call.method.lower()}_{call.path.strip('/')}")
            rule = re.sub(r"{(\w+)}", rf"<{NAME}:\1>", call.path)
            blueprint.add_url_rule(rule, name, handler(host, call), methods=[call.method])
    pages = Pages()

    @pages.show("/docs")
    def api_page(at: object) -> object:
        """The document, for people."""
        return "api", {"document": _document(host), "document_url": url_for(".api_get_openapi_json"), "base": _base(host)}

    pages.add_to(blueprint, host)
    add_pages(blueprint, host)
    blueprint.after_request(harden)
    return blueprint

"""The admin blueprint: every call of the API, its document and the pages."""

from __future__ import annotations

import re

from flask import Blueprint

from ..access import harden
from ..runtime.host import Host
from . import about, queues, schedules, tasks
from .describe import document
from .pages import add_pages
from .routing import Api, handler

PARTS = (tasks.api, schedules.api, queues.api, about.api)


def make_blueprint(host: Host) -> Blueprint:
    """Return the blueprint of one app."""
    blueprint = Blueprint("taskengine", __name__, template_folder="templates", static_folder="static", static_url_path="/static")
    about_itself = Api("about")

    @about_itself.call("GET", "/openapi.json", {200: None})
    def openapi(at: object) -> object:
        """Describe the API."""
        return document(PARTS, host.settings.api_url_prefix)

    for api in (*PARTS, about_itself):
        for call in api.calls:
            name = re.sub(r"\W+", "_", f"api_{call.method.lower()}_{call.path.strip('/')}")
            # A name may have slashes in it.
            rule = re.sub(r"{(task_type|name)}", r"<path:\1>", call.path)
            rule = re.sub(r"{(\w+)}", r"<\1>", rule)
            blueprint.add_url_rule(rule, name, handler(host, call), methods=[call.method])
    add_pages(blueprint, host)
    blueprint.after_request(harden)
    return blueprint

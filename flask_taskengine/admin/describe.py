"""The OpenAPI document, made from the declarations of the calls."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin

from .answers import ProblemSchema
from .problems import MIME
from .routing import Api, Call

_ALWAYS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE)
_WITH_INPUT = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)


def document(apis: Sequence[Api], prefix: str) -> dict[str, Any]:
    """Return the document; ``prefix`` is where the API stands in the app."""
    spec = APISpec(
        title="Flask-TaskEngine",
        version=version("flask-taskengine"),
        openapi_version="3.0.3",
        info={"description": "Tasks, schedules and workers of a Flask application."},
        plugins=[MarshmallowPlugin(schema_name_resolver=_name)],
        servers=[{"url": prefix or "/"}],
        tags=[{"name": api.tag} for api in apis],
    )
    spec.components.security_scheme("token", {"type": "http", "scheme": "bearer", "description": "One of TASKENGINE_API_TOKENS."})
    for api in apis:
        for call in api.calls:
            spec.path(call.path, operations={call.method.lower(): _operation(api, call)})
    made: dict[str, Any] = spec.to_dict()
    return made


def _name(schema: Any) -> str:
    name = schema if isinstance(schema, str) else getattr(schema, "__name__", type(schema).__name__)
    return str(name).removesuffix("Schema")


def _operation(api: Api, call: Call) -> dict[str, Any]:
    doc = inspect.getdoc(call.view) or ""
    in_path = [{"in": "path", "name": name, "required": True, "schema": {"type": "string"}} for name in re.findall(r"{(\w+)}", call.path)]
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{call.method.lower()} {call.path}").strip("_"),
        "tags": [api.tag],
        "summary": doc.split(". ")[0].rstrip("."),
        "description": doc,
        "security": [{"token": []}, {}],
        "parameters": in_path + ([{"in": "query", "schema": call.query}] if call.query is not None else []),
        "responses": {str(status): _answer(status, schema) for status, schema in _answers(call).items()},
    }
    if call.body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": call.body}}, "required": True}
    return operation


def _answers(call: Call) -> dict[int, Any]:
    given = call.query is not None or call.body is not None or "{" in call.path
    problems = (*_ALWAYS, *(_WITH_INPUT if given else ()))
    return dict(call.answers) | {int(status): ProblemSchema() for status in problems if status not in call.answers}


def _answer(status: int, schema: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if schema is not None:
        mime = MIME if status >= HTTPStatus.BAD_REQUEST else "application/json"
        answer["content"] = {mime: {"schema": schema}}
    return answer

"""How calls of the API are declared: once, for the routes and for the document that describes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NoReturn

from flask import request
from marshmallow import RAISE, Schema, ValidationError
from webargs.flaskparser import FlaskParser
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from .. import access
from ..access import Action
from ..runtime.host import Host
from .problems import problem_of
from .work import work

View = Callable[..., Any]
"""Takes the work, the query and the body as dicts where they are declared, and what is in the path; returns a JSON value, or a
pair of one and a status."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the API."""

    method: str
    path: str
    view: View
    action: Action
    query: Schema | None
    body: Schema | None
    answers: Mapping[int, Schema | None]
    """By status; None for an answer without a body."""


@dataclass(slots=True)
class Api:
    """The calls of one part of the API."""

    tag: str
    calls: list[Call] = field(default_factory=list)

    def call(
        self,
        method: str,
        path: str,
        answers: Mapping[int, Schema | None],
        *,
        query: Schema | None = None,
        body: Schema | None = None,
        action: Action | None = None,
    ) -> Callable[[View], View]:
        """Declare a call; its docstring is what the document says. All but GET are acts of writing."""

        def declare(view: View) -> View:
            self.calls.append(Call(method, path, view, action or ("read" if method == "GET" else "write"), query, body, answers))
            return view

        return declare


_parser = FlaskParser(unknown=None)


def handler(host: Host, call: Call) -> Callable[..., Response]:
    """Return what Flask calls for a call of the API."""

    def handle(**path: Any) -> Response:
        try:
            return _answer(_do(host, call, path))
        except Exception as error:
            answer = problem_of(error)
            if answer is None:
                raise
            return answer

    return handle


def _do(host: Host, call: Call, path: dict[str, Any]) -> Any:
    admitted = access.admit(host, request, call.action)
    if call.action == "write":
        access.check_csrf(request, admitted)
    given: dict[str, Any] = {}
    if call.query is not None:
        given["query"] = _parser.parse(call.query, request, location="query", unknown=RAISE)
    if call.body is not None:
        try:
            given["body"] = _parser.parse(call.body, request, location="json", unknown=RAISE)
        except (RecursionError, ValueError) as error:
            raise BadRequest(f"the body can not be read as JSON: {error}") from error
    with work(host, admitted) as at:
        return call.view(at, **given, **path)


def _answer(value: Any) -> Response:
    status = HTTPStatus.OK
    if isinstance(value, Response):
        return value
    if isinstance(value, tuple):
        value, status = value
    if value is None:
        return Response(status=status)
    return Response(json.dumps(value, ensure_ascii=False, default=str), status=status, mimetype="application/json")


@_parser.error_handler
def _raise(error: ValidationError, *_: Any, **__: Any) -> NoReturn:
    """Let wrong arguments come out as they are."""
    raise error

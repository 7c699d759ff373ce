"""Errors as RFC 9457 describes them: ``application/problem+json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import sqlalchemy as sa
from marshmallow import ValidationError
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from ..access import Refused
from ..domain.errors import (
    InvalidArgument,
    KeyBusyError,
    PayloadError,
    ScheduleConflict,
    ScheduleNotFound,
    TaskEngineError,
    TaskNotFound,
    TaskStateError,
)

MIME = "application/problem+json"

_STATUSES: Mapping[type[TaskEngineError], HTTPStatus] = {
    TaskNotFound: HTTPStatus.NOT_FOUND,
    ScheduleNotFound: HTTPStatus.NOT_FOUND,
    TaskStateError: HTTPStatus.CONFLICT,
    ScheduleConflict: HTTPStatus.CONFLICT,
    KeyBusyError: HTTPStatus.CONFLICT,
    PayloadError: HTTPStatus.UNPROCESSABLE_ENTITY,
    InvalidArgument: HTTPStatus.UNPROCESSABLE_ENTITY,
}


def problem(status: int, detail: str, errors: Any = None) -> Response:
    """Return an error as an answer."""
    said = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": int(status), "detail": detail}
    if errors:
        said["errors"] = errors
    return Response(json.dumps(said, default=str), status=status, mimetype=MIME)


def problem_of(error: Exception) -> Response | None:
    """Return the answer that says what was wrong; None for what is a fault of the program."""
    match error:
        case Refused():
            answer = error.response or problem(error.status, str(error))
            if error.status == HTTPStatus.UNAUTHORIZED:
                answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        case ValidationError():
            return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "some fields are wrong: see errors", error.messages)
        case PayloadError():
            return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), {"payload": dict(error.faults)})
        case sa.exc.DataError():
            return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "a value can not be stored: leave out NUL and what is too large")
        case sa.exc.OperationalError() | sa.exc.InterfaceError():
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, "the database does not answer: try again")
        case HTTPException() if error.code is not None and error.code >= HTTPStatus.BAD_REQUEST:
            return problem(error.code, error.description or error.name)
        case TaskEngineError():
            status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), None)
            return None if status is None else problem(status, str(error))
        case _:
            return None

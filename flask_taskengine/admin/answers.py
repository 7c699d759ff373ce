"""What the API answers, as marshmallow schemas: they describe, and what they describe is tested."""

from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields

from ..domain.states import TaskStatus


def _any(**options: Any) -> fields.Raw:
    return fields.Raw(allow_none=True, **options)


def _text(*, null: bool = False, **options: Any) -> fields.String:
    return fields.String(allow_none=null, **options)


def _time(*, null: bool = False) -> fields.DateTime:
    return fields.DateTime(allow_none=null)


def _number(*, null: bool = False) -> fields.Integer:
    return fields.Integer(allow_none=null)


def _status() -> fields.String:
    return fields.String(metadata={"enum": [status.value for status in TaskStatus]})


class ProblemSchema(Schema):
    """An error, by RFC 9457."""

    type = _text()
    title = _text()
    status = _number()
    detail = _text()
    errors = fields.Dict()


class TaskSchema(Schema):
    """A task; times are in UTC, by the database's clock."""

    id = _number()
    type = _text()
    payload = _any()
    status = _status()
    priority = _number()
    attempts = _number()
    max_attempts = _number(null=True)
    available_at = _time()
    created_at = _time()
    updated_at = _time()
    claimed_at = _time(null=True)
    claimed_by = _text(null=True)
    claims = _number()
    cancel_requested_at = _time(null=True)
    finished_at = _time(null=True)
    idempotency_key = _text(null=True)
    last_error = _text(null=True)
    trace_context = _any()
    result = _any()
    progress = _any()


class AttemptSchema(Schema):
    """A failed attempt."""

    task_id = _number()
    claims = _number()
    attempt = _number()
    node = _text(null=True)
    started_at = _time(null=True)
    finished_at = _time()
    error_class = _text()
    message = _text()
    traceback = _text(null=True)


class TaskDetailSchema(TaskSchema):
    """A task with its failed attempts."""

    failed_attempts = fields.List(fields.Nested(AttemptSchema))


class TaskPageSchema(Schema):
    """Tasks, newest first."""

    items = fields.List(fields.Nested(TaskSchema))
    next = _text(null=True, metadata={"description": "The cursor of the next page; null where there is none."})


class ChangedSchema(Schema):
    """The task as it is now."""

    id = _number()
    status = _status()


class RequeuedSchema(Schema):
    """How many."""

    requeued = _number()


class BulkDoneSchema(Schema):
    """What a bulk act has done, or would do."""

    count = _number()
    exact = fields.Boolean(metadata={"description": "False: there are at least so many."})
    more = fields.Boolean(metadata={"description": "Call again to go on."})
    sample = fields.List(fields.Nested(TaskSchema))


class WhySchema(Schema):
    """Why a task does not run, or what state it is in."""

    code = _text()
    text = _text()
    details = fields.Dict()


class ListSchema(Schema):
    """Everything there is."""

    items = fields.List(fields.Dict())


class FreeSchema(Schema):
    """An object."""

    class Meta:
        """Any names."""

        unknown = "include"

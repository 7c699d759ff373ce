"""The calls on tasks."""

from __future__ import annotations

from typing import Any

from ..domain.errors import InvalidArgument, TaskNotFound
from ..domain.states import TaskStatus
from ..engine import bulk, manage
from ..engine.bulk import Act
from ..engine.presentation import plain_fields, task_fields
from ..store import search, tasks
from ..store.search import Filter
from . import answers as said
from .fields import BulkSchema, NewTaskSchema, PageQuery, ResetQuery, RetryDeadQuery, filter_of
from .routing import Api
from .work import Work

api = Api("tasks")

_LARGEST_ID = 2**63 - 1
_TASK, _CHANGED = said.TaskSchema(), said.ChangedSchema()


def number(text: str) -> int:
    """Read an id out of a path.

    Raises:
        TaskNotFound: no task can have it.
    """
    task_id = int(text) if text.isascii() and text.isdecimal() else 0
    if not 0 < task_id <= _LARGEST_ID:
        raise TaskNotFound(task_id)
    return task_id


@api.call("GET", "/tasks", {200: said.TaskPageSchema()}, query=PageQuery())
def list_tasks(at: Work, query: dict[str, Any]) -> Any:
    """List tasks, newest first. Where no index serves the filter a page may be short; `next` then says where to go on."""
    only = filter_of(query, at.host.settings.redact, in_text=True)
    cursor = query.get("cursor")
    below = None if cursor is None else int(cursor)
    page = search.page(at.connection, at.dialect, only, limit=query["limit"], offset=query["offset"], below=below)
    items = [task_fields(task, at.host.settings.redact) for task in page.items]
    return {"items": items, "next": None if page.below is None else str(page.below)}


@api.call("POST", "/tasks", {201: _TASK, 200: _TASK, 409: said.ProblemSchema()}, body=NewTaskSchema())
def enqueue(at: Work, body: dict[str, Any]) -> Any:
    """Enqueue a task. 200 and the existing task where the idempotency key exists."""
    (made,) = at.engine.enqueue_many([body], session=at.session)
    if made.created:
        at.audit("enqueue", f"task {made.id} of type {body['type']}")
    return _shown(at, made.id), 201 if made.created else 200


@api.call("GET", "/tasks/{task_id}", {200: said.TaskDetailSchema(), 404: said.ProblemSchema()})
def show(at: Work, task_id: str) -> Any:
    """Show a task and its failed attempts."""
    shown = _shown(at, number(task_id))
    attempts = tasks.attempts_of(at.connection, at.dialect.tables, shown["id"])
    return shown | {"failed_attempts": [plain_fields(one) for one in attempts]}


@api.call("GET", "/tasks/{task_id}/why", {200: said.WhySchema(), 404: said.ProblemSchema()})
def why(at: Work, task_id: str) -> Any:
    """Say in words why a task is not running."""
    found = at.engine.explain(number(task_id), session=at.session)
    return {"code": found.code, "text": found.text, "details": plain_fields(found.details)}


@api.call("POST", "/tasks/{task_id}/retry", {200: _CHANGED, 404: said.ProblemSchema(), 409: said.ProblemSchema()}, query=ResetQuery())
def retry(at: Work, query: dict[str, Any], task_id: str) -> Any:
    """Run a task once more that is DEAD, FAILED or CANCELLED; 409 for any other."""
    one = number(task_id)
    at.engine.retry(one, reset_attempts=query["reset_attempts"], session=at.session)
    at.audit("retry", f"task {one}")
    return {"id": one, "status": TaskStatus.PENDING}


@api.call("POST", "/tasks/{task_id}/cancel", dict.fromkeys((200, 202), _CHANGED) | dict.fromkeys((404, 409), said.ProblemSchema()))
def cancel(at: Work, task_id: str) -> Any:
    """Cancel a task that waits, or ask a running one to end (202); 409 where it has ended."""
    one = number(task_id)
    status = at.engine.cancel(one, session=at.session)
    at.audit("cancel", f"task {one}")
    return {"id": one, "status": status}, 202 if status is TaskStatus.RUNNING else 200


@api.call("DELETE", "/tasks/{task_id}", {204: None, 404: said.ProblemSchema(), 409: said.ProblemSchema()})
def delete(at: Work, task_id: str) -> Any:
    """Remove a task; 409 while it runs."""
    one = number(task_id)
    at.engine.delete(one, session=at.session)
    at.audit("delete", f"task {one}")
    return None, 204


@api.call("POST", "/tasks/retry-dead", {200: said.RequeuedSchema()}, query=RetryDeadQuery())
def retry_dead(at: Work, query: dict[str, Any]) -> Any:
    """Run all DEAD tasks once more, or those of one type."""
    requeued = manage.retry_dead(at.connection, at.dialect.tables, query.get("type"), reset_attempts=query["reset_attempts"])
    at.audit("retry", f"{requeued} DEAD tasks of {query.get('type') or 'all types'}")
    return {"requeued": requeued}


def _bulk(act: Act, doc: str) -> None:
    @api.call("POST", f"/tasks/bulk/{act}", {200: said.BulkDoneSchema()}, body=BulkSchema())
    def view(at: Work, body: dict[str, Any]) -> Any:
        return do_bulk(at, act, body, filter_of(body["filter"], at.host.settings.redact))

    view.__doc__ = doc


def do_bulk(at: Work, act: Act, body: dict[str, Any], only: Filter) -> dict[str, Any]:
    """Do something to all tasks that a filter finds, or say what would be done.

    Raises:
        InvalidArgument: every task meets the filter, and nobody has said that this is meant.
    """
    if body["dry_run"]:
        found = bulk.preview(at.connection, at.dialect, only, act)
        sample = [task_fields(task, at.host.settings.redact) for task in found.sample]
        return {"count": found.count, "exact": found.exact, "more": False, "sample": sample}
    if only.empty and not body["all"]:
        raise InvalidArgument("the filter is empty, so that every task meets it: say all=true if that is meant")
    changed, looked_at, below = 0, 0, None
    try:
        while looked_at < body["limit"]:
            most = min(bulk.BATCH, body["limit"] - looked_at)
            done = bulk.batch(at.connection, at.dialect, only, act, below=below, most=most, reset_attempts=body["reset_attempts"])
            at.commit()
            changed, below, looked_at = changed + done.changed, done.below, looked_at + most
            if below is None:
                break
    finally:
        # Also where a later batch fails: what was committed before stands.
        at.audit(act, f"{changed} tasks found by {only}")
        at.host.wake()
    return {"count": changed, "exact": True, "more": below is not None, "sample": []}


_bulk("retry", "Run again all that a filter finds and that is DEAD, FAILED or CANCELLED.")
_bulk("cancel", "Cancel all that a filter finds and that has not ended.")
_bulk("delete", "Remove all that a filter finds and that does not run.")


def _shown(at: Work, task_id: int) -> dict[str, Any]:
    task = tasks.get(at.connection, at.dialect.tables, task_id)
    if task is None:
        raise TaskNotFound(task_id)
    return task_fields(task, at.host.settings.redact)

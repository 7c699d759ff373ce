"""The pages on tasks: the list with its filters, one task, and what can be done to them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlencode

from flask import redirect, request, url_for
from marshmallow import RAISE, ValidationError
from werkzeug.datastructures import MultiDict

from ...domain.errors import InvalidArgument, TaskNotFound
from ...domain.states import TaskStatus
from ...engine import bulk
from ...engine.presentation import HIDDEN, plain_fields, task_fields
from ...store import search, tasks
from ...store.search import Filter
from ..fields import MOST_AT_ONCE, FilterSchema, PageQuery, filter_of
from ..tasks import do_bulk, number
from ..work import Work
from .frame import Pages

pages = Pages()

_PAGE = 50
_PAST = {"retry": "PENDING again", "cancel": "cancelled, or asked to end", "delete": "deleted"}


@pages.show("/ui/tasks")
def list_page(at: Work) -> Any:
    """The tasks that a filter finds; the filter stands in the address."""
    given, faults = _given(at, request.args, PageQuery())
    only = Filter() if faults else filter_of(given, at.host.settings.redact, in_text=True)
    below = int(given["cursor"]) if given.get("cursor") else None
    page = search.page(at.connection, at.dialect, only, limit=_PAGE, below=below)
    kept = [(name, value) for name, value in request.args.items(multi=True) if value and name != "cursor"]
    return "tasks", {
        "tasks": [(task, task_fields(task, at.host.settings.redact)) for task in page.items],
        "next": _next(kept, page.below),
        "query": {name: request.args.getlist(name) for name in request.args},
        "query_string": urlencode(kept),
        "faults": faults,
        "statuses": list(TaskStatus),
        "types": sorted({*at.host.registry.types(), *request.args.getlist("type")} - {""}),
        "filtered": not only.empty,
    }


def _next(kept: list[tuple[str, str]], below: int | None) -> str | None:
    if below is None:
        return None
    return url_for(".page_list_page", **MultiDict([*kept, ("cursor", str(below))]).to_dict(flat=False))  # type: ignore[arg-type]


def _given(at: Work, args: MultiDict[str, str], schema: FilterSchema) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a filter from what a form sends, which says nothing where a field is empty."""
    said: dict[str, Any] = {}
    for name in args:
        values = [value for value in args.getlist(name) if value]
        if values and name in schema.fields:
            said[name] = values if name in ("status", "type") else values[0]
    try:
        given = schema.load(said, unknown=RAISE)
        filter_of(dict(given), at.host.settings.redact, in_text=True)
    except ValidationError as error:
        return {}, error.messages if isinstance(error.messages, dict) else {"": error.messages}
    return given, {}


@pages.show("/ui/tasks/<task_id>")
def task_page(at: Work, task_id: str) -> Any:
    """One task: what it is, what happened, why it does not run."""
    task = tasks.get(at.connection, at.dialect.tables, number(task_id))
    if task is None:
        raise TaskNotFound(number(task_id))
    attempts = tasks.attempts_of(at.connection, at.dialect.tables, task.id)
    why = at.engine.explain(task.id, session=at.session)
    shown = task_fields(task, at.host.settings.redact)
    allowed = {act: task.status in statuses for act, statuses in bulk.ALLOWED.items()}
    return "task", {
        "task": task,
        "shown": shown,
        "hidden": HIDDEN in json.dumps(shown["payload"], default=str),
        "attempts": attempts,
        "why": why,
        "why_details": plain_fields(why.details),
        "allowed": allowed,
        "trace_id": _trace_id(task.trace_context),
    }


def _trace_id(context: Any) -> str | None:
    parent = context.get("traceparent") if isinstance(context, dict) else None
    parts = parent.split("-") if isinstance(parent, str) else []
    return parts[1] if len(parts) == 4 else None


@pages.act("/ui/tasks/<task_id>/<act>")
def act_on_task(at: Work, task_id: str, act: str) -> Any:
    """Retry, cancel or delete one task."""
    one = number(task_id)
    match act:
        case "retry":
            at.engine.retry(one, reset_attempts=bool(request.form.get("reset_attempts")), session=at.session)
        case "cancel":
            at.engine.cancel(one, session=at.session)
        case "delete":
            at.engine.delete(one, session=at.session)
        case _:
            raise InvalidArgument(f"{act} is nothing that can be done to a task: retry, cancel or delete it")
    at.audit(act, f"task {one}")
    return f"Task {one} is {_PAST[act]}."


@pages.act("/ui/bulk")
def act_on_many(at: Work) -> Any:
    """Act on the tasks that are ticked, or on all that the filter finds; the latter is shown before it is done."""
    act = request.form.get("act", "")
    if act not in bulk.ALLOWED:
        raise InvalidArgument("choose what to do: retry, cancel or delete")
    if request.form.get("scope") != "all":
        ids = [number(one) for one in request.form.getlist("id")]
        changed = bulk.act_on(at.connection, at.dialect, ids, act, reset_attempts=bool(request.form.get("reset_attempts")))  # type: ignore[arg-type]
        at.audit(act, f"{changed} tasks: {', '.join(map(str, ids))}")
        return f"{changed} of {len(ids)} tasks are {_PAST[act]}."
    query = request.form.get("query", "")
    if not request.form.get("confirmed"):
        return redirect(url_for(".page_confirm_page", act=act, query=query), 303)
    only = _filter(at, query)
    body = {"filter": {}, "all": bool(request.form.get("all")), "dry_run": False, "reset_attempts": False, "limit": MOST_AT_ONCE}
    done = do_bulk(at, act, body, only)  # type: ignore[arg-type]
    more = " There are more: do it again." if done["more"] else ""
    return f"{done['count']} tasks are {_PAST[act]}.{more}"


@pages.show("/ui/confirm")
def confirm_page(at: Work) -> Any:
    """What a bulk act would change."""
    act, query = request.args.get("act", ""), request.args.get("query", "")
    if act not in bulk.ALLOWED:
        raise InvalidArgument("choose what to do: retry, cancel or delete")
    found = bulk.preview(at.connection, at.dialect, _filter(at, query), act)  # type: ignore[arg-type]
    return "confirm", {"act": act, "query": query, "found": found, "past": _PAST[act]}


def _filter(at: Work, query: str) -> Filter:
    given, faults = _given(at, MultiDict(parse_qsl(query)), FilterSchema())
    if faults:
        raise ValidationError(faults)
    return filter_of(given, at.host.settings.redact, in_text=True)


@pages.act("/ui/enqueue")
def enqueue_again(at: Work) -> Any:
    """Enqueue a task, mostly one that there was, with what was changed of it."""
    try:
        payload = json.loads(request.form.get("payload") or "null")
        priority = int(request.form.get("priority") or 0)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the payload must be JSON and the priority a whole number: {error}") from None
    if HIDDEN in json.dumps(payload):
        raise InvalidArgument(f"the payload has hidden fields ({HIDDEN}): write their values, since they are not shown here")
    task_type = request.form.get("type", "")
    (made,) = at.engine.enqueue_many([{"type": task_type, "payload": payload, "priority": priority}], session=at.session)
    at.audit("enqueue", f"task {made.id} of type {task_type}")
    return f"Task {made.id} is enqueued."

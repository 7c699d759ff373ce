"""The calls on schedules."""

from __future__ import annotations

from typing import Any

from marshmallow import Schema

from ..domain.errors import ScheduleConflict
from ..engine.presentation import plain, schedule_fields
from . import answers as said
from .fields import RunSchema
from .routing import Api
from .work import Work

api = Api("schedules")

_ANSWERS: dict[int, Schema | None] = {200: said.FreeSchema(), 404: said.ProblemSchema(), 409: said.ProblemSchema()}


@api.call("GET", "/schedules", {200: said.ListSchema()})
def list_schedules(at: Work) -> Any:
    """List all schedules by name."""
    return {"items": [schedule_fields(one, at.host.settings.redact) for one in at.engine.schedules.list(session=at.session)]}


@api.call("GET", "/schedules/{name}", _ANSWERS)
def show(at: Work, name: str) -> Any:
    """Show a schedule and its next times."""
    one = at.engine.schedules.get(name, session=at.session)
    return schedule_fields(one, at.host.settings.redact) | {"next_times": [plain(when) for when in preview(at, name)]}


def preview(at: Work, name: str, count: int = 5) -> Any:
    """Return the next times, none where they can not be told."""
    try:
        return at.engine.schedules.preview(name, count, session=at.session)
    except ScheduleConflict:
        return []


@api.call("POST", "/schedules/{name}/run", _ANSWERS, body=RunSchema())
def run(at: Work, body: dict[str, Any], name: str) -> Any:
    """Run a schedule once, now, also while it is paused."""
    made = at.engine.schedules.run_now(name, move_next=body["move_next"], session=at.session)
    at.audit("run", f"schedule {name}, task {made.id}")
    return {"task_id": made.id, "created": made.created}


@api.call("POST", "/schedules/{name}/pause", _ANSWERS)
def pause(at: Work, name: str) -> Any:
    """Let no occurrence begin any more."""
    one = at.engine.schedules.pause(name, session=at.session)
    at.audit("pause", f"schedule {name}")
    return schedule_fields(one, at.host.settings.redact)


@api.call("POST", "/schedules/{name}/resume", _ANSWERS)
def resume(at: Work, name: str) -> Any:
    """Go on after a pause."""
    one = at.engine.schedules.resume(name, session=at.session)
    at.audit("resume", f"schedule {name}")
    return schedule_fields(one, at.host.settings.redact)

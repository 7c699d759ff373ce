"""The pages on types, nodes, schedules and dead tasks."""

from __future__ import annotations

from typing import Any

from flask import request

from ...domain.errors import InvalidArgument
from ...engine import pausing
from ...store import explain as reading
from .. import queues, schedules
from ..work import Work
from .frame import Pages

pages = Pages()


@pages.show("/ui/types")
def types_page(at: Work) -> Any:
    """Each type: its limits, what waits and runs, whether it is paused."""
    return "types", {"types": queues.types(at), "everything": next(iter(reading.pauses(at.connection, at.dialect.tables, [])), None)}


@pages.act("/ui/types/<act>")
def act_on_type(at: Work, act: str) -> Any:
    """Pause or resume a type, or everything."""
    task_type = request.form.get("type") or pausing.EVERYTHING
    spoken = "Everything" if task_type == pausing.EVERYTHING else f"Type {task_type}"
    if act == "pause":
        reason = request.form.get("reason") or None
        at.engine.pause(task_type, reason=reason, by=at.admitted.who, session=at.session)
        at.audit("pause", f"{spoken}{f': {reason}' if reason else ''}")
        return f"{spoken} is paused."
    at.engine.resume(task_type, session=at.session)
    at.audit("resume", spoken)
    return f"{spoken} goes on."


@pages.show("/ui/nodes")
def nodes_page(at: Work) -> Any:
    """The worker processes."""
    return "nodes", {"nodes": queues.nodes(at)}


@pages.show("/ui/schedules")
def schedules_page(at: Work) -> Any:
    """Each schedule: its next times and its last runs."""
    found = at.engine.schedules.list(session=at.session)
    return "schedules", {"schedules": [(one, schedules.preview(at, one.name, 3)) for one in found]}


@pages.act("/ui/schedules/<act>")
def act_on_schedule(at: Work, act: str) -> Any:
    """Run, pause or resume a schedule."""
    name = request.form.get("name", "")
    match act:
        case "run":
            made = at.engine.schedules.run_now(name, session=at.session)
            done = f"Schedule {name} runs now, as task {made.id}."
        case "pause":
            at.engine.schedules.pause(name, session=at.session)
            done = f"Schedule {name} is paused."
        case "resume":
            at.engine.schedules.resume(name, session=at.session)
            done = f"Schedule {name} goes on."
        case _:
            raise InvalidArgument(f"{act} is nothing that can be done to a schedule: run, pause or resume it")
    at.audit(act, f"schedule {name}")
    return done


@pages.show("/ui/dead")
def dead_page(at: Work) -> Any:
    """Dead tasks, grouped by what their errors say."""
    return "dead", {"groups": queues.groups(at)}


@pages.act("/ui/dead/retry")
def retry_dead_group(at: Work) -> Any:
    """Run one of a group, or all of it."""
    requeued = queues.requeue_group(at, request.form.get("fingerprint", ""), only_first=bool(request.form.get("only_first")))
    return f"{requeued} tasks are PENDING again."

"""The calls on types, nodes and the queue as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from werkzeug.exceptions import NotFound

from ..domain.limits import Limits
from ..engine import bulk, insight, pausing
from ..engine.insight import Group
from ..engine.presentation import first_line, plain, plain_fields
from ..store import explain as reading
from ..store import health, overview
from ..store.gauges import QueueState
from . import answers as said
from .fields import GroupSchema, PauseSchema
from .routing import Api
from .work import Work

api = Api("queue")

HOUR = 3600.0
_LIST, _ANY = said.ListSchema(), said.FreeSchema()


@api.call("GET", "/stats", {200: _ANY})
def stats(at: Work) -> Any:
    """Count the tasks by status, and those that wait or run by type. What is estimated, because there are very many, is named."""
    figures = health.health_figures(at.connection, at.dialect)
    state = at.dialect.queue_state(at.connection, at.host.settings.lease)
    return {
        "tasks": {status.value: number for status, number in figures.depth.tasks.items()},
        "estimated": sorted(figures.depth.estimated),
        "pending": state.pending,
        "due": state.due,
        "running": state.running,
        "oldest_due_age": figures.oldest_due,
        "nodes": state.nodes,
        "paused": sorted(state.paused),
        "warnings": health.warnings(figures),
    }


@api.call("GET", "/nodes", {200: _LIST})
def list_nodes(at: Work) -> Any:
    """List the nodes, those that are gone for less than a day too."""
    return {"items": [plain_fields(one) for one in nodes(at)]}


def nodes(at: Work) -> list[dict[str, Any]]:
    """Read the nodes, the live ones first, with the age of their last heartbeat in seconds and whether they are alive."""
    table, now, lease = at.dialect.tables.node, at.now(), at.host.settings.lease
    found = []
    for row in at.connection.execute(sa.select(table).order_by(table.c.heartbeat_at.desc(), table.c.id)).mappings():
        age = (now - row["heartbeat_at"]).total_seconds()
        found.append(dict(row) | {"heartbeat_age": max(0.0, age), "alive": row["expired_at"] is None and age <= lease})
    return sorted(found, key=lambda one: not one["alive"])


@api.call("GET", "/types", {200: _LIST})
def list_types(at: Work) -> Any:
    """List the types that this app knows, that a node knows, that have tasks, or that are paused."""
    return {"items": types(at)}


def types(at: Work) -> list[dict[str, Any]]:
    """Read what there is to say of each type."""
    state = at.dialect.queue_state(at.connection, at.host.settings.lease)
    ended = insight.by_type(overview.lately(at.connection, at.dialect.tables, HOUR).ended)
    pauses = {pause.type: pause for pause in reading.pauses(at.connection, at.dialect.tables)}
    known = {task_type for node in nodes(at) if node["alive"] for task_type in node["types"]}
    here = set(at.host.registry.types())
    names = sorted({*here, *known, *state.pending, *state.running, *ended, *pauses} - {pausing.EVERYTHING})
    return [
        {
            "type": name,
            "registered": name in here,
            "processed": name in known,
            "pending": state.pending.get(name, 0),
            "due": state.due.get(name, 0),
            "oldest_due_age": state.due_for.get(name, 0.0),
            "running": state.running.get(name, 0),
            "limits": _limits(at, state, name),
            "paused": _pause(pauses, name),
            "last_hour": {status.lower(): number for status, number in ended.get(name, {}).items()},
            "error_rate": insight.error_rate(ended[name]) if name in ended else None,
        }
        for name in names
    ]


def _limits(at: Work, state: QueueState, name: str) -> dict[str, int | None]:
    processor = at.host.registry.get(name)
    own: Limits = at.host.settings.limits(name, processor.limits if processor else None)
    return {scope: state.limits.get((name, scope), getattr(own, scope)) for scope in ("per_node", "cluster_wide")}


def _pause(pauses: Mapping[str, reading.Pause], name: str) -> dict[str, Any] | None:
    pause = pauses.get(name) or pauses.get(pausing.EVERYTHING)
    if pause is None:
        return None
    return {"everything": pause.type == pausing.EVERYTHING, "since": plain(pause.since), "by": pause.by, "reason": pause.reason}


@api.call("POST", "/types/{task_type}/pause", {200: _ANY}, body=PauseSchema())
def pause(at: Work, body: dict[str, Any], task_type: str) -> Any:
    """Let no task of a type begin anywhere; `*` stands for all types. What runs goes on."""
    at.engine.pause(task_type, reason=body["reason"], by=at.admitted.who, session=at.session)
    at.audit("pause", f"{_spoken(task_type)}{': ' + body['reason'] if body['reason'] else ''}")
    return {"type": task_type, "paused": True}


@api.call("POST", "/types/{task_type}/resume", {200: _ANY})
def resume(at: Work, task_type: str) -> Any:
    """End the pause of a type, or with `*` that of everything; those of single types outlast that."""
    was_paused = at.engine.resume(task_type, session=at.session)
    at.audit("resume", _spoken(task_type))
    return {"type": task_type, "paused": False, "was_paused": was_paused}


def _spoken(task_type: str) -> str:
    return "all types" if task_type == pausing.EVERYTHING else f"type {task_type}"


# --- dead tasks ---------------------------------------------------------------------------------------------------------


@api.call("GET", "/dead-groups", {200: _LIST})
def dead_groups(at: Work) -> Any:
    """Put the newest DEAD and FAILED tasks into groups: of one type, with errors that differ by numbers and values only."""
    return {"items": [group_fields(group) for group in groups(at)]}


def groups(at: Work) -> list[Group]:
    """Read the groups of dead tasks."""
    return insight.groups(overview.dead(at.connection, at.dialect.tables))


def group_fields(group: Group) -> dict[str, Any]:
    """Return a group as JSON values."""
    return {
        "fingerprint": group.fingerprint,
        "type": group.type,
        "error": first_line(group.error),
        "count": len(group.ids),
        "newest": group.ids[0],
        "first_at": plain(group.first_at),
        "last_at": plain(group.last_at),
    }


@api.call("POST", "/dead-groups/{fingerprint}/retry", {200: said.RequeuedSchema(), 404: said.ProblemSchema()}, body=GroupSchema())
def retry_group(at: Work, body: dict[str, Any], fingerprint: str) -> Any:
    """Run a group once more: the newest of it, to see, or all."""
    return {"requeued": requeue_group(at, fingerprint, only_first=body["only_first"])}


def requeue_group(at: Work, fingerprint: str, *, only_first: bool) -> int:
    """Put a group of dead tasks, or its newest, back to PENDING; return how many.

    Raises:
        NotFound: there is no such group any more.
    """
    ids = next((group.ids for group in groups(at) if group.fingerprint == fingerprint), None)
    if ids is None:
        raise NotFound("no dead task is of this group any more")
    requeued = bulk.act_on(at.connection, at.dialect, ids[:1] if only_first else ids, "retry")
    at.audit("retry", f"{requeued} dead tasks of group {fingerprint}")
    return requeued

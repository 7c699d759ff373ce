"""Why a task does not run, or what state it is in, in words; on the caller's connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from ..domain.errors import TaskNotFound
from ..domain.states import TaskStatus
from ..domain.task import Task
from ..settings import Settings
from ..store import explain as reading
from ..store import nodes, tasks
from ..store.dialects.base import Dialect
from . import explain_texts as texts
from .registry import Registry

MOST_AHEAD = 1000
"""Tasks ahead of another are counted up to this number."""
MOST_HOLDERS = 10
"""Tasks that hold a limit are named up to this number."""


class Code(StrEnum):
    """What an explanation says, for programs."""

    ENDED = "ended"
    """SUCCEEDED, FAILED, DEAD or CANCELLED."""
    RUNNING = "running"
    CANCEL_REQUESTED = "cancel_requested"
    """It runs, and was asked to end."""
    RUNNING_ORPHANED = "running_orphaned"
    """The node that ran it has lost its lease; another one requeues it."""
    SCHEDULED = "scheduled"
    """Not due yet."""
    RETRY_WAIT = "retry_wait"
    """Not due yet, because an attempt has failed."""
    ALL_PAUSED = "all_paused"
    TYPE_PAUSED = "type_paused"
    NO_WORKER = "no_worker"
    TYPE_UNKNOWN = "type_unknown"
    """No live node processes its type."""
    TYPE_LIMIT_CLUSTER = "type_limit_cluster"
    TYPE_LIMIT_NODE = "type_limit_node"
    """Every live node that processes its type runs as many of it as it may, or has no free slot."""
    BEHIND = "behind"
    """Others come first: of higher priority, or due earlier."""
    NO_FREE_SLOT = "no_free_slot"
    """It is the next one, as soon as a node has a free slot."""
    DUE = "due"
    """Nothing stands in its way: it starts at once."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task does not run, or what state it is in."""

    code: Code
    text: str
    """One or two sentences for a person, with the remedy where there is one."""
    details: Mapping[str, Any] = field(hash=False)
    """The facts behind the text; times are aware and in UTC, durations in seconds."""


def explain(connection: sa.Connection, dialect: Dialect, settings: Settings, registry: Registry, task_id: int) -> Explanation:
    """Say why a task does not run, by the database's clock. Reads only, in the caller's transaction, and never commits.

    Raises:
        TaskNotFound: no such task.
    """
    task = tasks.get(connection, dialect.tables, task_id)
    if task is None:
        raise TaskNotFound(task_id)
    processor = registry.get(task.type)
    policy = settings.retry_policy(task.type, processor.retry if processor else None)
    most = policy.max_attempts if task.max_attempts is None else task.max_attempts
    case = _Case(connection, dialect, settings, task, most, reading.now(connection))
    match task.status:
        case TaskStatus.PENDING:
            return case.pending()
        case TaskStatus.RUNNING:
            return case.running()
        case _:
            return case.made(Code.ENDED, texts.ended(task, most), attempts=task.attempts, finished_at=task.finished_at)


@dataclass(frozen=True, slots=True)
class _Case:
    """One task, and the way to what is around it."""

    connection: sa.Connection
    dialect: Dialect
    settings: Settings
    task: Task
    most: int | None
    """Attempts in all."""
    now: datetime

    def made(self, code: Code, text: str, **details: Any) -> Explanation:
        common = {"task_id": self.task.id, "type": self.task.type, "status": self.task.status.value, "last_error": self.task.last_error}
        return Explanation(code, text, common | details)

    def alive(self) -> Sequence[Mapping[str, Any]]:
        return nodes.alive(self.connection, self.dialect.tables, self.settings.lease)

    # --- it runs ------------------------------------------------------------------------------------------------------

    def running(self) -> Explanation:
        """Say where, since when, until when, and whether that node is still there."""
        task = self.task
        node = reading.node(self.connection, self.dialect.tables, task.claimed_by)
        until = None if node is None else node["heartbeat_at"] + timedelta(seconds=self.settings.lease)
        details = {
            "node": task.claimed_by,
            "claimed_at": task.claimed_at,
            "attempt": task.attempts,
            "max_attempts": self.most,
            "lease_until": until,
            "cancel_requested_at": task.cancel_requested_at,
        }
        if node is None or until is None or node["expired_at"] is not None or until < self.now:
            alive = [node["id"] for node in self.alive()]
            heard = None if node is None else node["heartbeat_at"]
            text = texts.orphaned(task, self.now, heard, self.settings.lease, alive)
            return self.made(Code.RUNNING_ORPHANED, text, alive=alive, **details)
        if task.cancel_requested_at is not None:
            return self.made(Code.CANCEL_REQUESTED, texts.cancel_requested(task, self.now), **details)
        return self.made(Code.RUNNING, texts.running(task, self.most, self.now, until), **details)

    # --- it waits -----------------------------------------------------------------------------------------------------

    def pending(self) -> Explanation:
        """Go through what can stand in the way, in the order in which a claim asks."""
        task = self.task
        if task.available_at > self.now:
            return self._not_yet()
        paused = reading.pauses(self.connection, self.dialect.tables, [task.type])
        if paused:
            pause = paused[0]
            code = Code.ALL_PAUSED if pause.type == "*" else Code.TYPE_PAUSED
            return self.made(code, texts.paused(pause, self.now), since=pause.since, by=pause.by, reason=pause.reason)
        alive = self.alive()
        if not alive:
            return self.made(Code.NO_WORKER, texts.no_worker(task, self.now))
        able = [node for node in alive if task.type in node["types"]]
        return self._waits_for(able) if able else self._unknown(alive)

    def _not_yet(self) -> Explanation:
        task = self.task
        wait = (task.available_at - self.now).total_seconds()
        details = {"available_at": task.available_at, "seconds": wait, "attempts": task.attempts, "max_attempts": self.most}
        if task.attempts and task.last_error is not None:
            return self.made(Code.RETRY_WAIT, texts.retry_wait(task, self.most, wait), **details)
        return self.made(Code.SCHEDULED, texts.scheduled(task, wait), **details)

    def _unknown(self, alive: Sequence[Mapping[str, Any]]) -> Explanation:
        """A type that nobody knows waits for a while, since it may just be on its way to the workers; then its attempts fail."""
        grace_until = self.task.available_at + timedelta(seconds=self.settings.unknown_type_grace)
        text = texts.unknown(self.task, [node["id"] for node in alive], self.now, grace_until)
        return self.made(Code.TYPE_UNKNOWN, text, alive=[node["id"] for node in alive], grace_until=grace_until)

    def _waits_for(self, able: Sequence[Mapping[str, Any]]) -> Explanation:
        """Look at the limits and the slots of the nodes that process its type, and at who comes first."""
        task, tables = self.task, self.dialect.tables
        running = reading.running(self.connection, tables, task.type)
        limits = nodes.cluster_limits(self.connection, tables)
        counts = tasks.running_by_type(self.connection, tables, sorted(limits)) if limits else {}
        full = {t for t, most in limits.items() if t != task.type and counts.get(t, 0) >= most}
        rooms = [_room(node, task.type, running) for node in able]
        ahead = self._ahead(able, full)
        details = {"ahead": ahead, "nodes": rooms}
        limit, used = limits.get(task.type), sum(running.of_type.values())
        if limit is not None and used >= limit:
            holders = reading.holders(self.connection, tables, task.type, MOST_HOLDERS)
            text = texts.cluster_limit(task, limit, running.of_type, holders)
            return self.made(Code.TYPE_LIMIT_CLUSTER, text, limit=limit, held_by=dict(running.of_type), holders=holders, **details)
        free = any(room["free"] > 0 for room in rooms)
        if not free and any(room["limit"] is not None and room["running"] >= room["limit"] for room in rooms):
            return self.made(Code.TYPE_LIMIT_NODE, texts.node_limit(task, rooms), **details)
        if ahead:
            return self.made(Code.BEHIND, texts.behind(ahead, MOST_AHEAD, rooms), **details)
        if not free:
            return self.made(Code.NO_FREE_SLOT, texts.no_free_slot(rooms), **details)
        return self.made(Code.DUE, texts.due(task, self.now), **details)

    def _ahead(self, able: Sequence[Mapping[str, Any]], full: set[str]) -> int:
        """Count who comes first on the nodes that process its type; what is paused or at its limit keeps nobody waiting."""
        types = sorted({task_type for node in able for task_type in node["types"]} - full)
        paused = {pause.type for pause in reading.pauses(self.connection, self.dialect.tables, types)}
        return self.dialect.ahead(self.connection, self.task, [t for t in types if t not in paused], MOST_AHEAD)


def _room(node: Mapping[str, Any], task_type: str, running: reading.Running) -> dict[str, Any]:
    """Say how many slots a node has for a type, and how many of them are free."""
    slots, in_use = node["concurrency"], running.in_all.get(node["id"], 0)
    limit, of_type = nodes.per_node_limit(node, task_type), running.of_type.get(node["id"], 0)
    free = slots - in_use if limit is None else min(slots - in_use, limit - of_type)
    return {"node": node["id"], "slots": slots, "in_use": in_use, "limit": limit, "running": of_type, "free": max(0, free)}

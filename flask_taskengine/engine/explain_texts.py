"""How an explanation is worded: what is the case, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..domain.durations import roughly, spoken
from ..domain.states import TaskStatus
from ..domain.task import Task
from ..store.explain import Pause
from .presentation import first_line

_LONG_DUE = 60.0
"""Seconds after which a task that nothing holds up is a riddle."""
_NAMED = 10


def ended(task: Task, most: int | None) -> str:
    """Say how a task has ended."""
    assert task.finished_at is not None
    attempts, error = _attempts(task.attempts, most), _error(task)
    match task.status:
        case TaskStatus.SUCCEEDED:
            how = f"in attempt {attempts}"
        case TaskStatus.FAILED:
            how = f"in attempt {attempts}, by an error that no retry can mend{error}; it can be retried by hand"
        case TaskStatus.DEAD:
            how = f"after attempt {attempts}{error}; it can be retried by hand"
        case _:
            how = f"cancelled by a person or the code {f'in attempt {attempts}' if task.attempts else 'before it ran'}{error}"
    return f"it has ended: {task.status} at {_at(task.finished_at)}, {how}"


def running(task: Task, most: int | None, now: datetime, until: datetime) -> str:
    """Say where a task runs."""
    lease = f"the node's lease runs until {_at(until)} and is extended as long as it lives"
    return f"it runs on node {task.claimed_by} since {_since(task.claimed_at, now)}, attempt {_attempts(task.attempts, most)}; {lease}"


def cancel_requested(task: Task, now: datetime) -> str:
    """Say that a running task is about to end."""
    asked = f"its cancellation was asked for {_since(task.cancel_requested_at, now)}"
    return f"it runs on node {task.claimed_by} and {asked}: it is CANCELLED once its handler has ended"


def orphaned(task: Task, now: datetime, heard: datetime | None, lease: float, alive: Sequence[str]) -> str:
    """Say that the node which ran a task is gone."""
    silent = (
        "whose row is gone" if heard is None else f"which was last heard {_since(heard, now)} and has lost its lease of {spoken(lease)}"
    )
    if not alive:
        return f"it ran on node {task.claimed_by}, {silent}; no worker is alive to requeue it: start one with `flask taskengine worker`"
    return f"it ran on node {task.claimed_by}, {silent}; it is about to be requeued by a live worker: {_named(alive)}"


def scheduled(task: Task, wait: float) -> str:
    """Say when a task is due."""
    return f"it is not due yet: it may run from {_at(task.available_at)} on, in {roughly(wait)}"


def retry_wait(task: Task, most: int | None, wait: float) -> str:
    """Say when a failed task is tried again."""
    attempt = _attempts(task.attempts + 1, most)
    return f"it is waiting for retry: attempt {attempt} may begin at {_at(task.available_at)}, in {roughly(wait)}{_error(task)}"


def paused(pause: Pause, now: datetime) -> str:
    """Say who has paused a type, and why."""
    what = "all types are paused" if pause.type == "*" else f"its type {pause.type!r} is paused"
    by = f" by {pause.by}" if pause.by else ""
    reason = f" ({first_line(pause.reason)})" if pause.reason else ""
    return f"{what}{by} since {_since(pause.since, now)}{reason}: it waits until that is resumed"


def no_worker(task: Task, now: datetime) -> str:
    """Say that nobody is there to run it."""
    return f"it is due since {_since(task.available_at, now)}, but no worker is alive: start one with `flask taskengine worker`"


def unknown(task: Task, alive: Sequence[str], now: datetime, until: datetime) -> str:
    """Say that nobody processes its type."""
    what = f"no live node processes its type {task.type!r}; alive: {_named(alive)}. Start a worker whose app knows it"
    if until > now:
        return f"{what}; without one its attempts begin to fail at {_at(until)}, in {roughly((until - now).total_seconds())}"
    return f"{what}; the time that is given for it is over since {_since(until, now)}, so its attempts fail until one knows it"


def cluster_limit(task: Task, limit: int, held_by: Mapping[str, int], holders: Sequence[int]) -> str:
    """Say who holds a cluster-wide limit."""
    nodes = _named([f"{node} ({number})" for node, number in sorted(held_by.items())])
    more = ", …" if sum(held_by.values()) > len(holders) else ""
    return f"its type {task.type!r} is at its cluster-wide limit of {limit}, held by {nodes}; tasks {', '.join(map(str, holders))}{more}"


def node_limit(task: Task, rooms: Sequence[Mapping[str, Any]]) -> str:
    """Say which nodes run as many of a type as they may."""
    told = [
        f"{room['node']} (no free slot of {room['slots']})"
        if room["limit"] is None or room["running"] < room["limit"]
        else f"{room['node']} ({room['running']} of {room['limit']})"
        for room in rooms
    ]
    return f"its type {task.type!r} is at its per-node limit on every live node that has a slot for it: {_named(told)}"


def behind(ahead: int, most: int, rooms: Sequence[Mapping[str, Any]]) -> str:
    """Say how many come first."""
    number = f"{most:,} or more others" if ahead >= most else "1 other" if ahead == 1 else f"{ahead} others"
    return f"it is due, but behind {number} of higher priority or earlier time; {_slots(rooms)}"


def no_free_slot(rooms: Sequence[Mapping[str, Any]]) -> str:
    """Say that it is next."""
    return f"it is the next one, but {_slots(rooms)}: it starts when one of their tasks has ended, or on another worker"


def due(task: Task, now: datetime) -> str:
    """Say that it should start."""
    text = f"it is due since {_since(task.available_at, now)} and nothing stands in its way: it should start at once"
    if (now - task.available_at).total_seconds() < _LONG_DUE:
        return text
    return f"{text}; see the workers' logs, and whether an open transaction has locked its row"


def _slots(rooms: Sequence[Mapping[str, Any]]) -> str:
    free, slots = sum(room["free"] for room in rooms), sum(room["slots"] for room in rooms)
    where = "the live node that processes its type" if len(rooms) == 1 else f"the {len(rooms)} live nodes that process its type"
    return f"{free or 'none'} of the {slots} slots of {where} {'is' if free <= 1 else 'are'} free"


def _attempts(number: int, most: int | None) -> str:
    return f"{number} (of any number)" if most is None else f"{number} of {most}"


def _error(task: Task) -> str:
    return f"; last error: {first_line(task.last_error)}" if task.last_error else ""


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _since(moment: datetime | None, now: datetime) -> str:
    return "an unknown time" if moment is None else f"{_at(moment)} ({roughly((now - moment).total_seconds())} ago)"

"""Writing tasks inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from ..domain.errors import InvalidArgument, KeyBusyError
from ..domain.task import Enqueued, NewTask
from ..store import tasks
from ..store.dialects.base import Dialect, KeyHeld
from .payload import PayloadCodec
from .registry import type_fault

_INT32 = 2**31 - 1
_KEY_LENGTH = 255
_TRIES = 3
MANY_KEYS = frozenset({"type", "payload", "priority", "idempotency_key", "max_attempts", "available_at"})
"""What a mapping may say of a task."""


def enqueue(connection: sa.Connection, dialect: Dialect, new: NewTask) -> Enqueued:
    """Write one task in the caller's transaction, or find the one that has its idempotency key. Never commits.

    Raises:
        KeyBusyError: another open transaction holds the key.
    """
    if new.idempotency_key is not None:
        return enqueue_many(connection, dialect, [new])[0]
    return Enqueued(dialect.insert(connection, new), created=True)


def enqueue_many(connection: sa.Connection, dialect: Dialect, news: Sequence[NewTask]) -> list[Enqueued]:
    """Write tasks in the caller's transaction in few statements; return a result for each, in order. Never commits.

    Raises:
        KeyBusyError: another open transaction holds one of the keys; none of the tasks is written.
    """
    keys = [new.idempotency_key for new in news if new.idempotency_key is not None]
    if not keys:
        return [Enqueued(task_id, created=True) for task_id in dialect.insert_many(connection, news) if task_id is not None]
    named = keys[0] if len(keys) == 1 else f"one of {len(keys)} keys"
    try:
        with dialect.guard_keys(connection):
            made = _written_or_found(connection, dialect, news)
            if None in made:
                raise KeyHeld("other transactions write and remove it all the time: try again")
    except KeyHeld as held:
        raise KeyBusyError(named, str(held)) from held
    return [result for result in made if result is not None]


def _written_or_found(connection: sa.Connection, dialect: Dialect, news: Sequence[NewTask]) -> list[Enqueued | None]:
    """Write each task or find the one that has its key; neither where that one is gone each time it is looked for."""
    made: list[Enqueued | None] = [None] * len(news)
    missing = list(range(len(news)))
    for _ in range(_TRIES):
        ids = dialect.insert_many(connection, [news[i] for i in missing])
        for i, task_id in zip(missing, ids, strict=True):
            made[i] = None if task_id is None else Enqueued(task_id, created=True)
        known = {i: key for i in missing if made[i] is None and (key := news[i].idempotency_key) is not None}
        existing = tasks.ids_of_keys(connection, dialect.tables, sorted(set(known.values()))) if known else {}
        for i, key in known.items():
            made[i] = Enqueued(existing[key], created=False) if key in existing else None
        missing = [i for i in known if made[i] is None]
        if not missing:
            break
    return made


def from_mapping(place: int, task: Mapping[str, Any]) -> NewTask:
    """Return the task that a mapping describes, the one at this place of a list.

    Raises:
        InvalidArgument: it has no type, or keys that mean nothing.
    """
    if "type" not in task:
        raise InvalidArgument(f"tasks[{place}] has no type")
    unknown = set(task) - MANY_KEYS
    if unknown:
        raise InvalidArgument(f"tasks[{place}] has unknown keys {', '.join(sorted(unknown))}: give {', '.join(sorted(MANY_KEYS))}")
    return NewTask(**{"payload": None, **task})


def prepared(new: NewTask, codec: PayloadCodec, max_payload: int) -> NewTask:
    """Return a task that can be written: its arguments checked, its payload turned into JSON text.

    Raises:
        InvalidArgument: an argument is wrong.
        PayloadError: the payload can not be written, or is larger than ``max_payload`` bytes.
    """
    _check(new)
    # Not by dataclasses.replace, which takes longer than all the rest.
    return NewTask(
        type=new.type,
        payload=codec.dump(new.payload, max_payload),
        priority=new.priority,
        idempotency_key=new.idempotency_key,
        max_attempts=new.max_attempts,
        # PostgreSQL knows no time zone as far from UTC as Python does.
        available_at=None if new.available_at is None else new.available_at.astimezone(UTC),
        delay=new.delay,
        trace_context=new.trace_context,
    )


def _check(new: NewTask) -> None:
    fault = type_fault(new.type)
    if fault is not None:
        raise InvalidArgument(fault)
    _check_int("priority", new.priority, -_INT32 - 1)
    if new.max_attempts is not None:
        _check_int("max_attempts", new.max_attempts, 1)
    key = new.idempotency_key
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= _KEY_LENGTH and _is_storable(key)):
        raise InvalidArgument(f"idempotency_key is {key!r:.60}: give a text of 1 to {_KEY_LENGTH} characters without NUL, or None")
    when = new.available_at
    if when is not None and not isinstance(when, datetime):
        raise InvalidArgument(f"the time to run at is {when!r}: give an aware datetime")
    if when is not None and when.tzinfo is None:
        raise InvalidArgument(f"the time to run at, {when.isoformat()}, has no time zone: give an aware datetime")
    if when is not None and not is_in_range(when):
        raise InvalidArgument(f"the time to run at, {when.isoformat()}, lies outside of the years 1 to 9999 in UTC")


def _check_int(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _INT32:
        raise InvalidArgument(f"{name} is {value!r}: give a whole number from {least} to {_INT32}")


def is_in_range(when: datetime) -> bool:
    """Say whether a time can be told in UTC."""
    try:
        when.astimezone(UTC)
    except OverflowError:
        return False
    return True


def _is_storable(text: str) -> bool:
    try:
        return "\0" not in text and bool(text.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False

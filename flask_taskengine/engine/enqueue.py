"""Writing tasks inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

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


def enqueue(connection: sa.Connection, dialect: Dialect, new: NewTask) -> Enqueued:
    """Write one task in the caller's transaction, or find the one that has its idempotency key. Never commits.

    Raises:
        KeyBusyError: another open transaction holds the key.
    """
    return enqueue_many(connection, dialect, [new])[0] if new.idempotency_key is not None else _enqueue_new(connection, dialect, new)


def _enqueue_new(connection: sa.Connection, dialect: Dialect, new: NewTask) -> Enqueued:
    task_id = dialect.insert(connection, new)
    assert task_id is not None
    return Enqueued(task_id, created=True)


def enqueue_many(connection: sa.Connection, dialect: Dialect, news: Sequence[NewTask]) -> list[Enqueued]:
    """Write tasks in the caller's transaction, in order, in few statements. Never commits.

    Raises:
        KeyBusyError: another open transaction holds one of the keys; none of the tasks is written.
    """
    made: list[Enqueued | None] = [None] * len(news)
    missing = list(range(len(news)))
    for _ in range(_TRIES):
        ids = _insert(connection, dialect, [news[i] for i in missing])
        for i, task_id in zip(missing, ids, strict=True):
            made[i] = _made(connection, dialect, news[i], task_id)
        missing = [i for i in missing if made[i] is None]
        if not missing:
            return [result for result in made if result is not None]
    raise KeyBusyError(news[missing[0]].idempotency_key or "", "other transactions write and remove it all the time: try again")


def _insert(connection: sa.Connection, dialect: Dialect, news: list[NewTask]) -> Sequence[int | None]:
    try:
        if len(news) == 1:
            return [dialect.insert(connection, news[0])]
        return dialect.insert_many(connection, news)
    except KeyHeld as held:
        keys = [new.idempotency_key for new in news if new.idempotency_key is not None]
        raise KeyBusyError(keys[0] if len(keys) == 1 else f"one of {len(keys)} keys", str(held)) from held


def _made(connection: sa.Connection, dialect: Dialect, new: NewTask, task_id: int | None) -> Enqueued | None:
    """Return the result for one task; none where the row that had its key is gone again."""
    if task_id is not None:
        return Enqueued(task_id, created=True)
    assert new.idempotency_key is not None
    existing = tasks.id_of_key(connection, dialect.tables, new.idempotency_key)
    return None if existing is None else Enqueued(existing, created=False)


def prepared(new: NewTask, codec: PayloadCodec, max_payload: int) -> NewTask:
    """Return a task that can be written: its arguments checked, its payload turned into JSON text.

    Raises:
        InvalidArgument: an argument is wrong.
        PayloadError: the payload can not be written, or is larger than ``max_payload`` bytes.
    """
    _check(new)
    return replace(new, payload=codec.dump(new.payload, max_payload))


def _check(new: NewTask) -> None:
    fault = type_fault(new.type)
    if fault is not None:
        raise InvalidArgument(fault)
    _check_int("priority", new.priority, -_INT32 - 1)
    if new.max_attempts is not None:
        _check_int("max_attempts", new.max_attempts, 1)
    key = new.idempotency_key
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= _KEY_LENGTH and "\0" not in key):
        raise InvalidArgument(f"idempotency_key is {key!r:.60}: give a text of 1 to {_KEY_LENGTH} characters without NUL, or None")
    when = new.available_at
    if when is not None and not isinstance(when, datetime):
        raise InvalidArgument(f"the time to run at is {when!r}: give an aware datetime")
    if when is not None and when.tzinfo is None:
        raise InvalidArgument(f"the time to run at, {when.isoformat()}, has no time zone: give an aware datetime")


def _check_int(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _INT32:
        raise InvalidArgument(f"{name} is {value!r}: give a whole number from {least} to {_INT32}")

"""What a person or the code does to a schedule, inside the caller's transaction. Nothing here commits.

Each verb begins by locking the schedule, which is a write: on SQLite a read before it might find it locked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from ..domain.errors import ScheduleConflict
from ..domain.occurrence import Occurrence
from ..domain.schedule import FixedRate, Timing, later, replan
from ..domain.states import TaskStatus
from ..domain.task import Enqueued
from ..store import schedules, tasks
from ..store.schedules import CODE, DATABASE, ScheduleRow
from . import recurring
from .declare import declare
from .definition import Definition, read_definition
from .enqueue import enqueue_many
from .scheduled import Desk, Schedule, get, is_orphaned, known_types, not_found


def create(desk: Desk, name: str, task_type: str, payload: str | None, definition: Definition) -> Schedule:
    """Store a schedule for a task type.

    Raises:
        ScheduleConflict: the name is taken.
    """
    values = {
        "name": name,
        "source": DATABASE,
        "type": task_type,
        "payload": payload,
        "definition": definition.text(),
        "next_at": definition.timing.after(schedules.now(desk.connection)),
    }
    if name in desk.declared or not desk.dialect.insert_absent(desk.connection, desk.dialect.tables.schedule, values):
        raise ScheduleConflict(name, "exists already: change it, or give another name")
    desk.dialect.wake(desk.connection)
    return get(desk, name)


def change(desk: Desk, name: str, edit: Callable[[ScheduleRow, Definition], tuple[Definition, Mapping[str, str | None]]]) -> Schedule:
    """Give a stored schedule another definition, and another payload where ``edit`` returns one under the key ``payload``.

    The next time is planned anew if the timing is another one.

    Raises:
        ScheduleNotFound: there is none.
        ScheduleConflict: it stands in the code.
    """
    row, now = _locked(desk, name)
    if row.source == CODE:
        raise ScheduleConflict(name, "stands in the code: change it there; here it can be paused, rescheduled and run")
    definition, payload = edit(row, read_definition(row.definition))
    values: dict[str, Any] = {"definition": definition.text(), **payload}
    if definition.form()["timing"] != row.definition["timing"]:
        values["next_at"] = None
        if row.task_id is None or definition.timing.planned:
            values["next_at"] = replan(definition.timing, now, began=row.last_scheduled_at, ended=row.last_ended_at)
    return _written(desk, name, **values)


def remove(desk: Desk, name: str) -> None:
    """Remove a schedule that no code declares; an occurrence that waits is cancelled, one that runs ends by itself.

    Raises:
        ScheduleNotFound: there is none.
        ScheduleConflict: it stands in the code of this app or of a live node.
    """
    row, _ = _locked(desk, name)
    if row.source == CODE and name in desk.declared:
        raise ScheduleConflict(name, "stands in the code: remove it there, or pause it")
    if row.source == CODE and row.type in known_types(desk):
        raise ScheduleConflict(name, "stands in the code of a node that runs: stop the workers with that code first, or pause it")
    _cancel_waiting(desk, row)
    schedules.delete(desk.connection, desk.dialect.tables, name)


def run_now(desk: Desk, name: str, *, move_next: bool) -> Enqueued:
    """Run a schedule once, also while it is paused.

    Where an occurrence waits for its retry, that runs now; where one runs, another follows it.

    Args:
        move_next: plan the next regular time from this run; else it stays.

    Returns:
        The task; ``created`` is false where it is that of the occurrence which has begun already.

    Raises:
        ScheduleNotFound: there is none.
        ScheduleConflict: no code knows it.
    """
    row, now = _locked(desk, name)
    if is_orphaned(desk, row, known_types(desk)):
        raise ScheduleConflict(name, "no code knows it, so nothing would run: start a worker whose app does, or remove it")
    row = recurring.free(desk.connection, desk.dialect, name) or row
    definition = read_definition(row.definition)
    moved: dict[str, Any] = {}
    if move_next:
        moved["next_at"] = definition.timing.after(now) if definition.timing.planned else None
    if row.task_id is None:
        occurrence = Occurrence(name, now, by_hand=not move_next)
        made = enqueue_many(desk.connection, desk.dialect, [recurring.new_task(row, definition, occurrence)])[0]
        moved |= {"task_id": made.id, "last_task_id": made.id, "last_scheduled_at": now}
    else:
        made = Enqueued(row.task_id, created=False)
        if schedules.live_task(desk.connection, desk.dialect.tables, row.task_id) == TaskStatus.PENDING:
            schedules.make_due(desk.connection, desk.dialect.tables, row.task_id)
        else:
            moved["requested_at"] = now
    if moved:
        schedules.write(desk.connection, desk.dialect.tables, name, **moved)
    return made


def reschedule(desk: Desk, name: str, when: datetime | float) -> Schedule:
    """Set the next regular time, a moment or seconds from now; the times after it follow from it.

    Raises:
        ScheduleNotFound: there is none.
    """
    _, now = _locked(desk, name)
    return _written(desk, name, next_at=when if isinstance(when, datetime) else later(now, when))


def pause(desk: Desk, name: str) -> Schedule:
    """Begin no occurrence any more; one that waits for its retry is cancelled, one that runs ends by itself.

    Raises:
        ScheduleNotFound: there is none.
    """
    row, now = _locked(desk, name)
    _cancel_waiting(desk, row)
    return _written(desk, name, paused_at=row.paused_at or now)


def resume(desk: Desk, name: str) -> Schedule:
    """Go on with the next regular time after now; what would have run in between is left out.

    Raises:
        ScheduleNotFound: there is none.
    """
    row, now = _locked(desk, name)
    values: dict[str, Any] = {"paused_at": None}
    if row.paused_at is not None and row.next_at is not None and row.next_at < now:
        values["next_at"] = _first_after(read_definition(row.definition).timing, row.next_at, now)
    return _written(desk, name, **values)


def _first_after(timing: Timing, next_at: datetime, now: datetime) -> datetime | None:
    if not timing.planned:
        return now
    return timing.after(timing.due(next_at, now, 1)[-1] if isinstance(timing, FixedRate) else now)


def _locked(desk: Desk, name: str) -> tuple[ScheduleRow, datetime]:
    locked = schedules.lock(desk.connection, desk.dialect.tables, name)
    if locked is None and name in desk.declared:
        declare(desk.connection, desk.dialect, {name: desk.declared[name]}, None, desk.lease)
        locked = schedules.lock(desk.connection, desk.dialect.tables, name)
    if locked is None:
        raise not_found(desk, name)
    return locked


def _written(desk: Desk, name: str, **values: Any) -> Schedule:
    schedules.write(desk.connection, desk.dialect.tables, name, **values)
    desk.dialect.wake(desk.connection)
    return get(desk, name)


def _cancel_waiting(desk: Desk, row: ScheduleRow) -> None:
    if row.task_id is not None and tasks.cancel_pending(desk.connection, desk.dialect.tables, row.task_id):
        recurring.free(desk.connection, desk.dialect, row.name)

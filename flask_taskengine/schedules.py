"""``engine.schedule`` and ``engine.schedules``: the recurring schedules of an app, and what can be done to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any, TypedDict, TypeVar, Unpack

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from .domain.backoff import Backoff, Duration
from .domain.errors import ConfigError, InvalidArgument
from .domain.limits import Limits
from .domain.schedule import MOST_CAUGHT_UP, Dynamic, Misfire, MisfirePolicy, Timing, name_fault
from .domain.task import Enqueued
from .engine import schedule_verbs as verbs
from .engine import scheduled
from .engine.declare import Declared
from .engine.definition import Definition, checked_timing
from .engine.processor import ProcessorOptions, processor_from_function
from .engine.registry import Registry
from .engine.schedule_context import moment_or_wait
from .engine.scheduled import Desk, Schedule
from .runtime.host import Host
from .store.dialects.base import Dialect
from .store.schedules import ScheduleRow

Function = TypeVar("Function", bound=Callable[..., Any])
Where = scoped_session[Any] | Session | sa.Connection
Reach = Callable[[Where | None], tuple[Any, sa.Connection, Dialect]]


class ScheduleOptions(TypedDict, total=False):
    """What may be said of a schedule beside its times."""

    on_failure: Backoff | None
    """Whether and when a run that fails is tried again; by default the schedule goes on with its next time."""
    misfire: str
    """What becomes of occurrences that could not begin in time: ``"skip"``, ``"once"`` (the default) or ``"all"``."""
    misfire_grace: Duration | None
    """How late an occurrence may be without being missed; by default a minute, at most half of the time to the next one."""
    misfire_limit: int
    """How many occurrences ``"all"`` makes up for; 100 by default."""
    priority: int
    """Of the tasks; higher runs first."""


class DeclareOptions(ScheduleOptions, total=False):
    """What may be said of a schedule of the code beside its times."""

    timeout: Duration | EllipsisType | None
    """Of one run; None for no timeout, by default ``TASKENGINE_DEFAULT_TIMEOUT``."""
    limits: Limits | None
    """How many tasks of this type run at once."""
    isolation: str
    """``"process"`` runs the handler in a process of its own, which can be killed."""
    store_result: bool
    """Keep what the handler returns in the task's column ``result``."""


_OF_PROCESSOR = frozenset({"timeout", "limits", "isolation", "store_result"})


class Schedules:
    """The schedules of an app, those of its code and those that are stored in the database.

    Every verb works on ``db.session``, or on the Session or Connection given as ``session=``, inside the caller's transaction;
    none of them commits. A name that no schedule has is a ``ScheduleNotFound``.
    """

    def __init__(self, registry: Registry, host: Callable[[], Host], reach: Reach, enqueued: Callable[[Any, Enqueued, str], None]) -> None:
        self._registry = registry
        self._host = host
        self._reach = reach
        self._enqueued = enqueued
        self.declared: dict[str, Declared] = {}
        """Those of the code."""

    # --- in the code --------------------------------------------------------------------------------------------------

    def declare(self, name: str, schedule: Timing, **options: Unpack[DeclareOptions]) -> Callable[[Function], Function]:
        """Run a function, which takes the context or nothing, whenever a schedule says; it stays callable.

        Each occurrence is a task whose type is the schedule's name, and no occurrence begins before the last one has ended.

        Args:
            name: unique in the app, also among its task types.
            schedule: ``Cron``, ``FixedRate``, ``FixedDelay`` or ``Dynamic``.
            options: see ``DeclareOptions``.

        Raises:
            ConfigError: the name, an option or the handler's signature is wrong.
            InvalidArgument: the schedule or the failure setting is none.
            DuplicateTypeError: a schedule or a task type has this name already.

        Example:
            >>> @engine.schedule("nightly", Cron("0 3 * * *", timezone="Europe/Berlin"), on_failure=Backoff.fixed("5m"))
            ... def nightly(context): ...
        """
        of_processor: ProcessorOptions = {key: options.pop(key) for key in _OF_PROCESSOR & options.keys()}  # type: ignore[misc, assignment]
        definition = definition_of(schedule, **options)  # type: ignore[misc]

        def register(function: Function) -> Function:
            fault = name_fault(name)
            if fault is not None:
                raise ConfigError(fault)
            processor = processor_from_function(function, name, **of_processor)
            self._registry.add(processor)
            self.declared[name] = Declared(name, definition, processor.place)
            return function

        return register

    # --- look ---------------------------------------------------------------------------------------------------------

    def list(self, *, session: Where | None = None) -> list[Schedule]:
        """Return all schedules by name."""
        return scheduled.listed(self._desk(session)[1])

    def get(self, name: str, *, session: Where | None = None) -> Schedule:
        """Return one schedule."""
        return scheduled.get(self._desk(session)[1], name)

    def preview(self, name: str, count: int = 20, *, session: Where | None = None) -> Sequence[datetime]:
        """Return the next ``count`` times in UTC, or the next one where the others follow from how long runs take."""
        return scheduled.preview(self._desk(session)[1], name, count)

    # --- stored schedules -----------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        schedule: Timing,
        task_type: str,
        payload: Any = None,
        *,
        session: Where | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Store a schedule that enqueues a task of a registered type, one for a customer, say.

        Args:
            payload: what the type's processor takes; the same at each occurrence.
            options: as for a schedule of the code; without ``on_failure`` the retry policy of the type holds.

        Raises:
            ScheduleConflict: the name is taken.
            InvalidArgument: an argument is wrong, or this app has no processor for the type.
            PayloadError: the payload can not be written.
        """
        definition = definition_of(schedule, **options)
        fault = name_fault(name)
        if fault is not None:
            raise InvalidArgument(fault)
        if isinstance(schedule, Dynamic) and schedule.next_run is not None:
            raise InvalidArgument("a stored schedule can not keep the function next_run: let the handler return the next time")
        host, desk = self._desk(session)
        return verbs.create(desk, name, task_type, self._payload(host, task_type, payload), definition)

    def change(self, name: str, *, session: Where | None = None, **changes: Any) -> Schedule:
        """Change a stored schedule; what is not given stays. Takes ``schedule``, ``payload`` and the options of ``create``.

        Raises:
            ScheduleConflict: it stands in the code.
            InvalidArgument, PayloadError: as ``create``.
        """
        unknown = changes.keys() - ScheduleOptions.__annotations__.keys() - {"schedule", "payload"}
        if unknown:
            raise TypeError(f"unknown argument {', '.join(sorted(unknown))}: give schedule, payload, session or the options of create")
        host, desk = self._desk(session)

        def edit(row: ScheduleRow, old: Definition) -> tuple[Definition, dict[str, str | None]]:
            payload = {"payload": self._payload(host, row.type, changes.pop("payload"))} if "payload" in changes else {}
            return definition_of(**_said(old) | changes), payload

        return verbs.change(desk, name, edit)

    def remove(self, name: str, *, session: Where | None = None) -> None:
        """Remove a stored schedule, or an orphaned one of which the code has gone.

        Raises:
            ScheduleConflict: it stands in the code of this app or of a live node.
        """
        verbs.remove(self._desk(session)[1], name)

    # --- control --------------------------------------------------------------------------------------------------------

    def run_now(self, name: str, *, move_next: bool = False, session: Where | None = None) -> Enqueued:
        """Run a schedule once, also while it is paused; where an occurrence runs, another follows it.

        Args:
            move_next: plan the next regular time from this run; by default it stays.

        Returns:
            The task; ``created`` is false where it is that of an occurrence which has begun already.
        """
        _, desk = self._desk(session)
        made = verbs.run_now(desk, name, move_next=move_next)
        if made.created:
            self._enqueued(session, made, scheduled.get(desk, name).type)
        return made

    def reschedule(self, name: str, when: datetime | timedelta | float | str, *, session: Where | None = None) -> Schedule:
        """Set the next regular time: an aware datetime, or a duration from the database's now."""
        return verbs.reschedule(self._desk(session)[1], name, moment_or_wait(when))

    def pause(self, name: str, *, session: Where | None = None) -> Schedule:
        """Begin no occurrence any more; one that waits for its retry is cancelled, one that runs ends by itself."""
        return verbs.pause(self._desk(session)[1], name)

    def resume(self, name: str, *, session: Where | None = None) -> Schedule:
        """Go on with the next regular time; what would have run while it was paused is left out."""
        return verbs.resume(self._desk(session)[1], name)

    def _payload(self, host: Host, task_type: str, payload: Any) -> str | None:
        processor = self._registry.get(task_type)
        if processor is None:
            known = ", ".join(self._registry.types()) or "none"
            raise InvalidArgument(f"this app has no processor for the task type {task_type!r:.80}; it has: {known}")
        return processor.codec.dump(payload, host.settings.max_payload)

    def _desk(self, session: Where | None) -> tuple[Host, Desk]:
        host = self._host()
        _, connection, dialect = self._reach(session)
        return host, Desk(connection, dialect, self.declared, self._registry.types(), host.settings.lease)


def definition_of(
    schedule: object,
    *,
    on_failure: Backoff | None = None,
    misfire: str = MisfirePolicy.ONCE,
    misfire_grace: Duration | None = None,
    misfire_limit: int = MOST_CAUGHT_UP,
    priority: int = 0,
) -> Definition:
    """Return the definition that a caller's arguments make.

    Raises:
        InvalidArgument: one of them is wrong.
    """
    if on_failure is not None and not isinstance(on_failure, Backoff):
        raise InvalidArgument(f"on_failure is {on_failure!r:.80}: give a Backoff, such as Backoff.geometric('1m', max_attempts=5)")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 2**31:
        raise InvalidArgument(f"priority is {priority!r:.40}: give a whole number of 32 bits")
    return Definition(checked_timing(schedule), on_failure, Misfire(misfire, misfire_grace, misfire_limit), priority)


def _said(definition: Definition) -> dict[str, Any]:
    """Return the arguments that make a definition."""
    misfire = definition.misfire
    return {
        "schedule": definition.timing,
        "on_failure": definition.on_failure,
        "misfire": misfire.policy,
        "misfire_grace": misfire.grace,
        "misfire_limit": misfire.most,
        "priority": definition.priority,
    }

"""What the handler of a schedule is told about the run, and what it says about the next."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ..domain.durations import seconds
from ..domain.errors import InvalidArgument
from ..domain.schedule import later
from .payload import dump_result

_logger = logging.getLogger("flask_taskengine")


@dataclass(slots=True, kw_only=True, eq=False)
class ScheduleContext:
    """The run of a schedule; a handler reaches it as ``context.schedule``."""

    name: str
    scheduled_at: datetime
    """The regular time of this occurrence, or when it was asked for by hand; in UTC."""
    by_hand: bool
    """Whether somebody asked for this run, beside the regular ones."""
    attempt: int
    """Of this occurrence, from 1."""
    max_attempts: int | None
    runs: int
    """Runs of the schedule that ended before this one, retries included."""
    successes: int
    runs_since_success: int
    """Runs that ended since the last success, so failed ones; 0 after a success."""
    last_success_at: datetime | None
    next_at: datetime | None
    """The next regular time; ``None`` where it follows from the end of this run."""
    state: Any = field(repr=False)
    """JSON that the last successful run has left, at first ``None``. Assigned or changed in place, it is stored in the transaction
    of this run's work if the run succeeds, and lost with that work if it fails."""
    error: BaseException | None = None
    """For the ``next_run`` of a ``Dynamic``: what the run has failed with."""
    dynamic: bool = False
    """Whether what the handler returns is the next time."""
    wanted: datetime | float | None = None
    """The next time that was asked for."""
    state_text: str | None = None
    """The state as it is to be stored."""

    def run_next(self, when: datetime | timedelta | float | str) -> None:
        """Say when the schedule is to run next, whatever its kind and however this run ends; a retry comes before it.

        Args:
            when: an aware datetime, or a duration after the end of this run.

        Raises:
            InvalidArgument: it is neither.
        """
        self.wanted = moment_or_wait(when)

    def succeeded(self, context: Any, returned: Any, next_run: Callable[[Any], Any] | None, max_bytes: int) -> None:
        """Take note of what the handler has left behind and of the next time that it, or ``next_run``, says.

        Raises:
            PayloadError: the state has no JSON form, or has more bytes than a payload may have.
            InvalidArgument: the next time is none; so for what ``next_run`` raises.
        """
        if self.dynamic and returned is not None:
            self.run_next(returned)
        self._ask(context, next_run)
        self.state_text = dump_result(self.state, max_bytes, task_type=self.name)

    def failed(self, context: Any, error: BaseException, next_run: Callable[[Any], Any] | None) -> None:
        """Ask ``next_run`` for the next time after a run that failed; its own errors are logged and the default holds."""
        self.error = error
        try:
            self._ask(context, next_run)
        except Exception:
            _logger.exception("next_run of the schedule %r failed", self.name)

    def _ask(self, context: Any, next_run: Callable[[Any], Any] | None) -> None:
        wanted = None if next_run is None else next_run(context)
        if wanted is not None:
            self.run_next(wanted)

    def next_from(self, now: datetime) -> datetime | None:
        """Return the next time that was asked for, given the database's now; ``None`` where none was."""
        return later(now, self.wanted) if isinstance(self.wanted, float) else self.wanted


def moment_or_wait(when: datetime | timedelta | float | str) -> datetime | float:
    """Return an aware datetime as it is, and a duration in seconds.

    Raises:
        InvalidArgument: it is neither.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidArgument(f"the time to run at, {when.isoformat()}, has no time zone: give an aware datetime")
        return when
    try:
        return round(seconds(when), 3)
    except ValueError as error:
        raise InvalidArgument(f"the time to run at: {error}, or an aware datetime") from None

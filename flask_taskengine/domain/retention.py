"""How long tasks that have ended are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .durations import LONGEST
from .states import TaskStatus
from .values import number, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """For how many seconds after its end a task is kept, per status; ``None`` keeps it for ever.

    An idempotency key blocks until its row is deleted or archived, so this is also how long a key blocks.

    Raises:
        ValueError: an argument is out of its range.
    """

    succeeded: float | None = 7 * 86400.0
    """0 deletes the row at completion, whatever the strategy."""
    cancelled: float | None = 7 * 86400.0
    failed: float | None = None
    dead: float | None = None
    strategy: Literal["delete", "archive"] = "delete"
    """``archive`` moves the row to the archive table instead."""
    interval: float = 3600.0
    """Seconds from one run of the pruner to the next."""

    def __post_init__(self) -> None:
        for name in ("succeeded", "cancelled", "failed", "dead", "interval"):
            value = getattr(self, name)
            if value is not None or name == "interval":
                object.__setattr__(self, name, number(value, 0, LONGEST))
        if self.interval == 0:
            raise ValueError("interval is 0: give a duration above 0")
        if self.strategy not in ("delete", "archive"):
            raise ValueError(f"strategy is {shown(self.strategy)}: give delete or archive")

    def kept_for(self, status: TaskStatus) -> float | None:
        """Return for how many seconds a task that ended so is kept; ``None`` is for ever.

        Raises:
            ValueError: a task with this status has not ended.
        """
        match status:
            case TaskStatus.SUCCEEDED:
                return self.succeeded
            case TaskStatus.CANCELLED:
                return self.cancelled
            case TaskStatus.FAILED:
                return self.failed
            case TaskStatus.DEAD:
                return self.dead
            case _:
                raise ValueError(f"a task that is {status} has not ended: retention does not know it")

    @property
    def deletes_at_completion(self) -> bool:
        """Whether a task that succeeds is deleted by its own completion."""
        return self.succeeded == 0

"""The first page: how the queue is, at a glance."""

from __future__ import annotations

from typing import Any

from ...domain.states import TaskStatus
from ...engine import insight
from ...store import explain as reading
from ...store import health, overview
from ..queues import HOUR
from ..work import Work
from .charts import chart
from .frame import Pages

pages = Pages()

DAY = 24 * HOUR
_DONE = {"succeeded": [TaskStatus.SUCCEEDED]}
_FAILED = {"dead": [TaskStatus.DEAD], "failed": [TaskStatus.FAILED]}
_ORDER = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.DEAD, TaskStatus.CANCELLED)


@pages.show("/")
def overview_page(at: Work) -> Any:
    """Counts, rates, latencies, warnings."""
    day = overview.lately(at.connection, at.dialect.tables, DAY)
    hour = day.within(HOUR)
    figures = health.health_figures(at.connection, at.dialect)
    state = at.dialect.queue_state(at.connection, at.host.settings.lease)
    of_hour, of_day = insight.buckets(hour, HOUR, 60), insight.buckets(day, DAY, 96)
    succeeded = [one for one in hour.ended if one.status is TaskStatus.SUCCEEDED]
    return "overview", {
        "counts": [(status, figures.depth.tasks[status], status in figures.depth.estimated) for status in _ORDER],
        "charts": [
            chart("Succeeded in the last hour", of_hour, _DONE),
            chart("Dead and failed in the last hour", of_hour, _FAILED),
            chart("Succeeded in the last day", of_day, _DONE),
            chart("Dead and failed in the last day", of_day, _FAILED),
        ],
        "cut": bool(hour.cut | day.cut),
        "waits": insight.percentiles(one.waited for one in succeeded),
        "runs": insight.percentiles(one.ran for one in succeeded),
        "per_minute": len(succeeded) / 60,
        "state": state,
        "oldest_due": figures.oldest_due,
        "warnings": health.warnings(figures),
        "pauses": reading.pauses(at.connection, at.dialect.tables),
    }

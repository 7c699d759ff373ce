"""Short ways to a shop's schedules: what stands in the database, and verbs that commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from flask_taskengine import Schedule, Task
from flask_taskengine.engine.declare import declare
from flask_taskengine.engine.recurring import Begun, begin_due
from flask_taskengine.store import schedules
from flask_taskengine.store.clock import db_now

from .shop import Shop
from .waiting import wait_until


def schedule_of(shop: Shop, name: str) -> Schedule:
    """Read a schedule as it is committed."""
    with shop.outside.connect() as connection, shop.app.app_context():
        return shop.engine.schedules.get(name, session=connection)


def act(shop: Shop, verb: str, *arguments: Any, **options: Any) -> Any:
    """Call a verb of ``engine.schedules`` and commit."""
    with shop.app.app_context():
        result = getattr(shop.engine.schedules, verb)(*arguments, **options)
        shop.db.session.commit()
    return result


def declare_all(shop: Shop, node: str | None = None, lease: float = 60) -> list[str]:
    """Write what the shop's code declares, as a worker does at its start."""
    with shop.outside.begin() as connection:
        return declare(connection, shop.dialect, shop.engine.schedules.declared, node, lease)


def begin(shop: Shop) -> list[Begun]:
    """Enqueue what is due, as a scheduler does."""
    types = shop.engine.registry.types()
    with own_transaction(shop) as connection:
        served = schedules.ours(shop.dialect.tables, types, shop.engine.schedules.declared)
        return begin_due(connection, shop.dialect, served, 100)


@contextmanager
def own_transaction(shop: Shop) -> Iterator[sa.Connection]:
    """Give a transaction that begins as the engine's own do."""
    with shop.outside.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(shop.dialect.begin)
        try:
            yield connection
        except BaseException:
            connection.rollback()
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")


def set_row(shop: Shop, name: str, **values: Any) -> None:
    """Change columns of a schedule's row by hand."""
    table = shop.dialect.tables.schedule
    with shop.outside.begin() as connection:
        connection.execute(sa.update(table).where(table.c.name == name).values(**values))


def overdue(shop: Shop, name: str, seconds: float) -> datetime:
    """Let a schedule's next time have been so many seconds ago; return that time."""
    moment = database_now(shop) - timedelta(seconds=seconds)
    set_row(shop, name, next_at=moment)
    found = schedule_of(shop, name).next_at
    assert found is not None
    return found


def database_now(shop: Shop) -> datetime:
    """Read the database's clock."""
    with shop.outside.connect() as connection:
        moment: datetime = connection.execute(sa.select(db_now())).scalar_one()
        return moment


def tasks_of(shop: Shop, task_type: str, *statuses: str) -> list[Task]:
    """Read the committed tasks of a type, oldest first."""
    return [task for task in shop.tasks() if task.type == task_type and (not statuses or task.status in statuses)]


def wait_for_runs(shop: Shop, name: str, count: int, timeout: float = 15) -> Schedule:
    """Wait until so many runs of a schedule have ended."""
    wait_until(lambda: schedule_of(shop, name).runs >= count, timeout, lambda: f"{count} runs of {schedule_of(shop, name)}")
    return schedule_of(shop, name)

"""What only a database with row locks can show of retention."""

from __future__ import annotations

import sqlalchemy as sa

from flask_taskengine.domain.states import TaskStatus
from flask_taskengine.store.clock import db_after
from flask_taskengine.store.retention import Batch
from tests.support.shop import Shop

BATCH = Batch(status=TaskStatus.DEAD, kept_for=60, archive=False, most=100)


def test_a_task_in_use_is_left_for_the_next_run(shop: Shop) -> None:
    """Pruning waits for nobody: a task that an open transaction has locked is skipped, and goes with the next run."""
    task = shop.dialect.tables.task
    ended = {"type": "noted", "status": "DEAD", "finished_at": db_after(-3600)}
    with shop.outside.begin() as connection:
        ids = [connection.execute(sa.insert(task).values(ended).returning(task.c.id)).scalar_one() for _ in range(3)]
    with shop.outside.connect() as holder:
        holder.execute(sa.select(task.c.id).where(task.c.id == ids[1]).with_for_update())
        with shop.outside.begin() as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
            assert shop.dialect.prune(connection, BATCH).count == 2
        assert [one.id for one in shop.tasks()] == [ids[1]]
    with shop.outside.begin() as connection:
        assert shop.dialect.prune(connection, BATCH).count == 1


def test_a_retry_that_has_not_committed_yet_wins(shop: Shop) -> None:
    """A task that is being put back to PENDING at this moment is not removed, whichever commits first."""
    task_id = shop.enqueue("noted")
    shop.sql("UPDATE taskengine_task SET status = 'DEAD', finished_at = now() - interval '1 h' WHERE id = :id", id=task_id)
    with shop.app.app_context():
        shop.engine.retry(task_id)
        with shop.outside.begin() as connection:
            assert shop.dialect.prune(connection, BATCH).count == 0
        shop.db.session.commit()
    with shop.outside.begin() as connection:
        assert shop.dialect.prune(connection, BATCH).count == 0
    assert shop.task(task_id).status is TaskStatus.PENDING

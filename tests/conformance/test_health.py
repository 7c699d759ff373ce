"""How the queue and its database are, in figures, on every database."""

from __future__ import annotations

import pytest

from flask_taskengine.domain.states import TaskStatus
from flask_taskengine.store.health import HealthFigures, health_figures, warnings
from flask_taskengine.store.vitals import Depth, OldestTransaction, Vitals
from tests.support.shop import Shop

NONE = Depth(dict.fromkeys(TaskStatus, 0))
OLD = OldestTransaction(age=600, pid=7, holder="psql", user="ann", state="idle in transaction")


def figures(shop: Shop) -> HealthFigures:
    """Read the figures."""
    with shop.outside.connect() as connection:
        return health_figures(connection, shop.dialect)


def test_an_empty_queue_has_every_figure(shop: Shop) -> None:
    """A status without a task is 0, not missing, so that no gauge keeps its last value (pg-boss#598)."""
    seen = figures(shop)
    assert seen.depth == NONE
    assert seen.due_for == {}
    assert seen.oldest_due == 0
    assert warnings(seen) == []


def test_the_figures_follow_the_tasks(shop: Shop) -> None:
    """Depth by status, and for each type how long its first due task has been waiting; scheduled and paused ones do not wait."""
    shop.enqueue_many("email", "email", "report", "held")
    with shop.app.app_context():
        shop.engine.enqueue_after("later", None, 60)
        shop.db.session.commit()
    shop.engine.task("email")(lambda payload: None)
    shop.sql("UPDATE taskengine_task SET available_at = '2020-01-01 00:00:00.000' WHERE type IN ('report', 'held')")
    shop.sql("INSERT INTO taskengine_type (type, paused_at) VALUES ('held', '2020-01-01 00:00:00.000')")
    seen = figures(shop)
    assert seen.depth.tasks[TaskStatus.PENDING] == 5
    assert set(seen.due_for) == {"email", "report"}
    assert seen.oldest_due == seen.due_for["report"] > 86400
    [sentence] = warnings(seen)
    assert sentence.startswith(f"tasks are due for up to {seen.oldest_due / 86400:.0f} d, of type report: start more workers")
    shop.sql("INSERT INTO taskengine_type (type, paused_at) VALUES ('*', '2020-01-01 00:00:00.000')")
    assert figures(shop).due_for == {}


@pytest.mark.parametrize(
    ("vitals", "said"),
    [
        (Vitals(dead_rows=99_999, oldest_transaction=OLD), None),
        (Vitals(dead_rows=200_000, oldest_transaction=None), None),
        (Vitals(dead_rows=200_000, oldest_transaction=OLD), "the session 7 (psql, user ann) has had a transaction open for 10 min"),
        (Vitals(dead_rows=2_000_000, sees_all=False), "GRANT pg_read_all_stats"),
        (Vitals(notify_queue_usage=0.4), None),
        (Vitals(notify_queue_usage=0.51), "the queue of notifications is 51% full"),
    ],
)
def test_what_is_worth_a_word(vitals: Vitals, said: str | None) -> None:
    """Only what slows down claims or will soon stop them, and each with its remedy after a colon."""
    found = warnings(HealthFigures(depth=NONE, due_for={}, vitals=vitals))
    assert len(found) == (said is not None)
    assert all(said is not None and said in sentence and ": " in sentence for sentence in found)


def test_what_is_no_session_can_be_blamed_too() -> None:
    """A forgotten prepared transaction keeps dead rows for ever."""
    oldest = OldestTransaction(age=600, pid=None, holder="prepared transaction x1", user="ann", state="prepared")
    [sentence] = warnings(HealthFigures(depth=NONE, due_for={}, vitals=Vitals(dead_rows=200_000, oldest_transaction=oldest)))
    assert sentence.endswith("end the prepared transaction x1, which holds them")

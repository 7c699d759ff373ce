"""What a transaction that is held open does to the queue: how claims stay quick, what the engine says of it, and who sees what."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from flask_taskengine.domain.states import TaskStatus
from flask_taskengine.runtime.database import Database
from flask_taskengine.runtime.healthwatch import HealthWatch
from flask_taskengine.runtime.watchdog import Watchdog
from flask_taskengine.store import health, nodes
from flask_taskengine.store.dialects.postgresql import PostgreSQL
from flask_taskengine.store.lowwater import LowWater
from flask_taskengine.store.vitals import Vitals
from tests.support.plans import costs_of
from tests.support.shop import Shop
from tests.support.shop_fixtures import RunWorker
from tests.support.waiting import wait_until

TAKEN = 20_000


@contextmanager
def held_open(shop: Shop, name: str = "a report") -> Iterator[int]:
    """Hold a transaction open that sees the database as it is now; yields the process id of its session."""
    url = shop.outside.url.update_query_dict({"application_name": name})
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM taskengine_task")
        yield connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()


def take_many(shop: Shop, number: int = TAKEN) -> None:
    """Let as many tasks have been enqueued, claimed and completed as leave this number of dead entries at the head of the queue."""
    shop.sql("ALTER TABLE taskengine_task SET (autovacuum_enabled = off)")
    shop.sql(
        "INSERT INTO taskengine_task (type, available_at) SELECT 'email', now() - i * interval '5 ms' - interval '2 s'"
        " FROM generate_series(1, :number) AS i",
        number=number,
    )
    shop.sql("UPDATE taskengine_task SET status = 'RUNNING', attempts = 1, claims = 1, claimed_by = 'gone'")
    shop.sql("UPDATE taskengine_task SET status = 'SUCCEEDED', finished_at = now()")


def add_node(shop: Shop) -> None:
    """Write the row of a node that may claim."""
    row = {"id": "a", "label": "a", "host": "h", "pid": 1, "version": "1", "concurrency": 8, "types": ["email"], "limits": {}}
    with shop.outside.begin() as connection:
        nodes.register(connection, shop.dialect.tables, row)


# --- claims -------------------------------------------------------------------------------------------------------------


def test_claims_do_not_wade_through_what_is_dead(shop: Shop) -> None:
    """Beside 20,000 dead entries, a claim that knows its mark visits as few pages as in an empty table, and takes what is due."""
    dialect = PostgreSQL(shop.host.names)
    add_node(shop)
    low_water = LowWater()

    def claim(connection: sa.Connection) -> list[int]:
        return [task.id for task in dialect.claim(connection, "a", {"email": 16}, 16, low_water)]

    with held_open(shop):
        take_many(shop)
        with shop.outside.begin() as connection:
            connection.execute(sa.text("INSERT INTO taskengine_task (type) VALUES ('email')"))
            dialect.claim(connection, "a", {"email": 16}, 16, low_water)
        low_water.looked([], [], 1.0, everywhere=True)
        low_water.surveyed(["email"], {})
        assert low_water.lanes(["email"])
        [everywhere] = costs_of(shop.outside, lambda c: dialect.claim(c, "a", {"email": 16}, 16))
        [restricted] = costs_of(shop.outside, claim)
        [look_ahead] = costs_of(shop.outside, lambda c: dialect.seconds_to_due(c, ["email"], low_water))
        ids = shop.enqueue_many(*["email"] * 20)
        with shop.outside.begin() as connection:
            assert claim(connection) == ids[:16]
            assert dialect.seconds_to_due(connection, ["email"], low_water)["email"] <= 0
    assert everywhere.buffers > 500, everywhere
    assert restricted.buffers < 20, restricted
    assert look_ahead.buffers < 20, look_ahead


def test_claims_in_lanes_keep_the_order_and_the_rooms(shop: Shop) -> None:
    """A restricted claim takes what an unrestricted one would: by priority, then time, no more of a type than there is room for."""
    dialect = PostgreSQL(shop.host.names)
    add_node(shop)
    low_water = LowWater()
    for task_type in ("email", "report"):
        for priority in (0, 5):
            shop.enqueue(task_type, priority=priority)
    rooms = {"email": 8, "report": 8}
    with shop.outside.begin() as connection:
        assert len(dialect.claim(connection, "a", rooms, 8, low_water)) == 4
    low_water.looked([], [], 1.0, everywhere=True)
    low_water.surveyed(rooms, {})
    ids = [shop.enqueue(*new) for new in [("email",), ("report",), ("email",)]]
    high = [shop.enqueue("report", priority=5), shop.enqueue("email", priority=5), shop.enqueue("email", priority=5)]
    assert len(low_water.lanes(rooms)) == 4
    with shop.outside.connect() as connection:
        assert [task.id for task in dialect.claim(connection, "a", rooms, 4, low_water)] == [*high, ids[0]]
        connection.rollback()
        low_water.looked([], [], 1.0, everywhere=True)
        taken = dialect.claim(connection, "a", {"email": 1, "report": 8}, 8, low_water)
        assert [task.type for task in taken].count("email") == 1
        connection.rollback()
    shop.sql("INSERT INTO taskengine_type (type, paused_at) VALUES ('email', now())")
    low_water.looked([], [], 1.0, everywhere=True)
    with shop.outside.connect() as connection:
        assert {task.type for task in dialect.claim(connection, "a", rooms, 8, low_water)} == {"report"}


def test_lanes_that_nothing_was_taken_of_keep_their_place(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow claims are, the next is the first by priority, time and id, also of a type that this node has not served."""
    monkeypatch.setattr("flask_taskengine.store.lowwater._SLOW", 0)
    monkeypatch.setattr("flask_taskengine.store.lowwater._SHARE", 1e9)
    dialect = PostgreSQL(shop.host.names)
    add_node(shop)
    low_water = LowWater()
    with shop.app.app_context():
        shop.engine.enqueue_many({"type": ("email", "report")[n % 2], "priority": n % 3} for n in range(12))
        shop.db.session.commit()
    expected = [task.id for task in sorted(shop.tasks(), key=lambda task: (-task.priority, task.available_at, task.id))]
    seen = []
    for _ in expected:
        with shop.outside.begin() as connection:
            seen += [task.id for task in dialect.claim(connection, "a", {"email": 1, "report": 1}, 1, low_water)]
            assert low_water.lanes(["email", "report"])
    assert seen == expected


def test_what_comes_to_stand_below_the_mark_is_found(shop: Shop, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose claims are restricted still runs new priorities, new types, and tasks that were due long ago."""
    monkeypatch.setattr("flask_taskengine.store.lowwater._SLOW", 0)
    monkeypatch.setattr("flask_taskengine.store.lowwater._SHARE", 1e9)
    for task_type in ("email", "report"):
        shop.engine.task(task_type)(lambda payload: None)
    worker = run_worker(shop)
    shop.wait_for(shop.enqueue("email"))
    assert worker.dispatcher._low_water.everywhere_in() > 0
    quick = shop.enqueue("email")
    shop.wait_for(quick)
    others = [shop.enqueue("email", priority=7), shop.enqueue("report")]
    with shop.outside.begin() as connection:
        statement = "INSERT INTO taskengine_task (type, available_at) VALUES ('email', now() - interval '1 h') RETURNING id"
        others.append(connection.exec_driver_sql(statement).scalar_one())
    for task_id in others:
        assert shop.wait_for(task_id, timeout=5).status is TaskStatus.SUCCEEDED


# --- figures ------------------------------------------------------------------------------------------------------------


def test_the_oldest_transaction_is_named(shop: Shop) -> None:
    """The figures say how many rows are dead, since when a transaction keeps them, and whose it is."""
    with held_open(shop) as pid:
        take_many(shop, 500)

        def vitals() -> Vitals:
            with shop.outside.connect() as connection:
                return shop.dialect.vitals(connection)

        wait_until(lambda: (vitals().dead_rows or 0) >= 1000, what="the server to count its dead rows")
        seen = vitals()
    assert seen.oldest_transaction is not None
    assert seen.oldest_transaction.pid == pid
    assert seen.oldest_transaction.holder == "a report"
    assert seen.oldest_transaction.user == "postgres"
    assert seen.oldest_transaction.state == "idle in transaction"
    assert 0 < (seen.oldest_transaction.age or 0) < 60
    assert seen.notify_queue_usage == 0
    with shop.outside.connect() as connection:
        assert shop.dialect.vitals(connection).oldest_transaction is None


def test_a_plain_role_sees_what_it_may(shop: Shop) -> None:
    """Without any right to statistics the figures come without an error, and say that other roles' sessions are hidden."""
    role = f"plain_{shop.outside.url.database}"
    shop.sql(f"CREATE ROLE {role} LOGIN")
    shop.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    plain = sa.create_engine(shop.outside.url.set(username=role), poolclass=sa.NullPool)
    try:
        with held_open(shop), plain.connect() as connection:
            seen = health.health_figures(connection, shop.dialect).vitals
        assert seen.oldest_transaction is None
        assert not seen.sees_all
        assert seen.dead_rows is not None
        with shop.outside.connect() as connection:
            assert shop.dialect.vitals(connection).sees_all
    finally:
        shop.sql(f"DROP OWNED BY {role}")
        shop.sql(f"DROP ROLE {role}")


def test_depth_is_exact_while_that_is_cheap_and_estimated_beyond(shop: Shop) -> None:
    """Every status has its number, also 0; more than 10,000 are estimated from the statistics of the planner."""
    shop.enqueue_many(*["email"] * 3)
    with shop.outside.connect() as connection:
        depth = shop.dialect.depth(connection)
    assert depth.tasks == dict.fromkeys(TaskStatus, 0) | {TaskStatus.PENDING: 3}
    assert not depth.estimated
    shop.sql(
        "INSERT INTO taskengine_task (type, status, finished_at) SELECT 'email', 'SUCCEEDED', now() FROM generate_series(1, 20000)",
    )
    shop.sql("ANALYZE taskengine_task")
    with shop.outside.connect() as connection:
        depth = shop.dialect.depth(connection)
    assert depth.tasks[TaskStatus.PENDING] == 3
    assert depth.tasks[TaskStatus.SUCCEEDED] == pytest.approx(20_000, rel=0.05)
    assert depth.estimated == {TaskStatus.SUCCEEDED}


# --- what is said of it -------------------------------------------------------------------------------------------------


@pytest.fixture
def watch(shop: Shop) -> Iterator[Callable[[], HealthWatch]]:
    """Make a health watch of a worker that has claimed nothing for an hour and has four free slots."""
    worker = shop.worker()
    database = Database(shop.host, Watchdog())
    shop.engine.task("email")(lambda payload: None)
    yield lambda: HealthWatch(database, lambda: worker.dispatcher.rooms(4), lambda: worker.dispatcher.last_claim - 3600)
    database.close()
    worker.database.close()


def test_a_worker_warns_once_and_says_when_it_is_over(
    shop: Shop, watch: Callable[[], HealthWatch], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line when a held transaction begins to hurt, however often it is looked at, and one when it has ended."""
    monkeypatch.setattr(health, "MANY_DEAD", 500)
    monkeypatch.setattr(health, "LONG_TRANSACTION", 0)
    looking = watch()
    caplog.set_level(logging.WARNING, "flask_taskengine")
    with held_open(shop, "the report") as pid:
        take_many(shop, 500)

        def warned() -> bool:
            looking.look()
            return bool(caplog.messages)

        wait_until(warned, what="the warning")
        looking.look()
        assert len(caplog.messages) == 1
        assert "dead rows of the task table can not be removed" in caplog.messages[0]
        assert f"the session {pid} (the report, user postgres) has had a transaction open for" in caplog.messages[0]
    looking.look()
    looking.look()
    assert caplog.messages[1:] == ["the health of the database: well again"]


def test_a_worker_warns_when_due_tasks_wait_beside_free_slots(
    shop: Shop, watch: Callable[[], HealthWatch], caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks that nothing holds up and that this node does not claim are a fault somebody must look at; paused ones are not."""
    looking = watch()
    caplog.set_level(logging.WARNING, "flask_taskengine")
    shop.enqueue("email")
    looking.look()
    assert caplog.messages == []
    shop.sql("UPDATE taskengine_task SET available_at = now() - interval '10 min'")
    looking.look()
    looking.look()
    assert len(caplog.messages) == 1
    assert "tasks are due, slots are free, and nothing was claimed (email for 10 min): " in caplog.messages[0]
    shop.sql("INSERT INTO taskengine_type (type, paused_at) VALUES ('email', now())")
    looking.look()
    assert caplog.messages[1:] == ["due tasks that are not claimed: well again"]

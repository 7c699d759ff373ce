"""What has broken other queues on PostgreSQL: locks and connections that are left behind, and the server's time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from flask_taskengine import ConfigError, FixedRate, Limits, TaskContext
from flask_taskengine.store.dialects import dialect_for, postgresql_listen
from flask_taskengine.store.tables import Names
from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop, RunWorker
from tests.support.waiting import wait_until


def test_r15_no_lock_outlives_its_transaction(shop: Shop, run_worker: RunWorker) -> None:
    """After claims at a limit, schedules and keys, while the worker still lives, its database holds no advisory lock (faults 16)."""
    runs: list[int] = []

    @shop.engine.schedule("often", FixedRate("100ms"))
    def often(context: TaskContext) -> None:
        runs.append(1)

    shop.engine.task("limited", limits=Limits(per_node=3, cluster_wide=2))(lambda payload: None)
    run_worker(shop)
    ids = shop.enqueue_many(*["limited"] * 40)
    shop.enqueue("limited", idempotency_key="once")
    shop.wait_for_all(ids)
    wait_until(lambda: len(runs) >= 3, what="some occurrences")
    here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
    locks = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = {here}"
    wait_until(lambda: shop.sql(locks)[0][0] == 0, 5, "no lock to be left")


def test_r11_a_listener_that_can_not_listen_leaves_no_connection(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused thirty times, whatever refuses it: as many connections as before, and then it listens (faults 68)."""
    connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    before = shop.sql(connections)[0][0]
    engine = sa.create_engine(shop.outside.url, poolclass=sa.NullPool)
    url = shop.outside.url.render_as_string(hide_password=False)

    def refuse(*_: Any) -> None:
        raise psycopg.OperationalError("no LISTEN here")

    with monkeypatch.context() as patch:
        patch.setattr(postgresql_listen.PostgreSQLListener, "_test", refuse)
        for n in range(30):
            with pytest.raises(psycopg.OperationalError):
                postgresql_listen.PostgreSQLListener(engine, url if n % 2 else None, "channel")
    wait_until(lambda: shop.sql(connections)[0][0] == before, 5, "the connections to be gone")
    listener = postgresql_listen.PostgreSQLListener(engine, None, "channel")
    listener.close()
    wait_until(lambda: shop.sql(connections)[0][0] == before, 5, "the last one to be gone too")


def test_r11_a_pool_that_renews_its_connections_keeps_the_wake_ups(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """The listening connection is none of the pool's: a short life of those ends no wake-up (faults 68)."""
    shop = make_shop(TASKENGINE_POLL_INTERVAL=60, SQLALCHEMY_ENGINE_OPTIONS={"pool_recycle": 0, "pool_size": 1})
    shop.engine.task("idle")(lambda payload: None)
    worker = run_worker(shop)
    wait_until(lambda: worker.notifier.mode == "LISTEN", what="the notifier")
    listener = worker.notifier._listener
    for _ in range(5):
        shop.wait_for(shop.enqueue("idle"), timeout=2)
    assert worker.notifier._listener is listener


@pytest.mark.parametrize("zone", ["Pacific/Chatham", "America/New_York"])
def test_r18_the_time_zone_of_the_server_plays_no_part(shop: Shop, run_worker: RunWorker, zone: str) -> None:
    """What is due, what waits and what is shown are moments, whatever zone the sessions are in (faults 119)."""
    name = shop.sql("SELECT current_database()")[0][0]
    shop.sql(f"""ALTER DATABASE "{name}" SET timezone = '{zone}'""")
    with shop.app.app_context():
        shop.db.engine.dispose()
    shop.engine.task("idle")(lambda payload: None)
    when = datetime(2031, 3, 30, 1, 30, tzinfo=UTC)
    with shop.app.app_context():
        assert shop.db.session.execute(sa.text("SHOW timezone")).scalar_one() == zone
        later = shop.engine.enqueue_at("idle", None, when).id
        soon = shop.engine.enqueue_after("idle", None, 0.3).id
        overdue = shop.engine.enqueue_at("idle", None, datetime.now(UTC) - timedelta(minutes=5)).id
        shop.db.session.commit()
        found = shop.engine.get(later)
    assert found is not None
    assert found.available_at == when
    assert found.available_at.utcoffset() == timedelta(0)
    run_worker(shop)
    for task_id in (soon, overdue):
        task = shop.wait_for(task_id)
        assert task.claimed_at is not None
        assert task.claimed_at >= task.available_at
    assert shop.task(later).status == "PENDING"


# --- poolers and drivers --------------------------------------------------------------------------------------------------


def test_r04_the_workers_own_connections_prepare_nothing_where_the_hosts_do_not(make_shop: MakeShop, run_worker: RunWorker) -> None:
    """What a pooler in between asks of the host's connections holds for the worker's own as well (faults P28, P77)."""
    shop = make_shop(SQLALCHEMY_ENGINE_OPTIONS={"connect_args": {"prepare_threshold": None}})
    shop.engine.task("idle")(lambda payload: None)
    worker = run_worker(shop)
    shop.wait_for_all([shop.enqueue("idle") for _ in range(12)])
    lines = [worker.dispatcher._line, worker.completer._line, worker.rollcall._line]
    drivers: list[Any] = [line._connection.connection.driver_connection for line in lines if line._connection is not None]
    assert len(drivers) == 3
    assert {driver.prepare_threshold for driver in drivers} == {None}
    with worker.database.line().statement() as connection:
        own: Any = connection.connection.driver_connection
        assert own.prepare_threshold is None


def test_r11_a_listener_has_an_address_of_its_own(make_shop: MakeShop, run_worker: RunWorker, postgresql_url: str) -> None:
    """With ``LISTEN_URL`` the one connection that listens passes the pooler by, and wakes the worker (faults P136)."""
    listen = sa.make_url(postgresql_url).update_query_dict({"application_name": "passing by"}).render_as_string(hide_password=False)
    shop = make_shop(TASKENGINE_LISTEN_URL=listen, TASKENGINE_POLL_INTERVAL=60)
    shop.engine.task("idle")(lambda payload: None)
    worker = run_worker(shop)
    wait_until(lambda: worker.notifier.mode == "LISTEN", what="the notifier")
    rows = shop.sql("SELECT query FROM pg_stat_activity WHERE application_name = 'passing by' AND datname = current_database()")
    assert [row[0].split()[0] for row in rows] == ["LISTEN"]
    shop.wait_for(shop.enqueue("idle"), timeout=2)


def test_another_driver_of_postgresql_is_refused() -> None:
    """The engine's statements are written for one driver: whoever configured another one is told which (faults 70, P52)."""
    other: Any = SimpleNamespace(dialect=SimpleNamespace(driver="psycopg2"))
    dialect = dialect_for("postgresql", Names())
    with pytest.raises(ConfigError, match="'psycopg2' is not supported: write the database's address as postgresql\\+psycopg://"):
        dialect.prepare(other, tune=True)
    dialect.prepare(sa.create_engine("postgresql+psycopg://host/database"), tune=True)

"""What retention removes, how, and when: the statements, the pruner and the command, on every database."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine.cli import taskengine
from flask_taskengine.domain.errors import InvalidArgument, TaskNotFound, TaskStateError
from flask_taskengine.domain.retention import Retention
from flask_taskengine.domain.states import TaskStatus
from flask_taskengine.engine import manage
from flask_taskengine.engine.retention import rules
from flask_taskengine.runtime.database import Database
from flask_taskengine.runtime.pruner import LEASE, Pruner
from flask_taskengine.runtime.watchdog import Watchdog
from flask_taskengine.runtime.worker import Worker, WorkerOptions
from flask_taskengine.store import nodes
from flask_taskengine.store.clock import db_after
from flask_taskengine.store.dialects.base import Dialect
from flask_taskengine.store.retention import Batch, Mark
from flask_taskengine.store.tables import Tables

from ..support.hosts import Host, MakeApp
from ..support.waiting import wait_until

DAY = 86400.0
SUCCEEDED, FAILED, DEAD, CANCELLED = TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.DEAD, TaskStatus.CANCELLED


@dataclass
class Store:
    """The rows of one database, and short ways to write and read them."""

    host: Host
    dialect: Dialect

    @property
    def tables(self) -> Tables:
        return self.dialect.tables

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Yield a connection whose transaction commits at the end."""
        with self.sql.begin() as connection:
            yield connection

    @property
    def sql(self) -> sa.Engine:
        return self.host.engine.host(self.host.app).sql_engine()  # type: ignore[no-any-return]

    def ended(self, status: TaskStatus = SUCCEEDED, age: float = DAY, **columns: Any) -> int:
        """Write a task that ended ``age`` seconds ago, and return its id."""
        values = {"type": "noted", "status": status.value, "finished_at": db_after(-age)} | columns
        with self.transaction() as connection:
            return int(connection.execute(sa.insert(self.tables.task).values(values).returning(self.tables.task.c.id)).scalar_one())

    def failed_attempt(self, task_id: int, claims: int = 1) -> None:
        """Write a failed attempt of a task."""
        values = {"task_id": task_id, "claims": claims, "attempt": claims, "error_class": "ValueError", "message": "no"}
        with self.transaction() as connection:
            connection.execute(sa.insert(self.tables.attempt).values(values))

    def ids(self, table: sa.Table, column: str = "id") -> list[int]:
        """Return the ids that a table holds, in order."""
        with self.sql.connect() as connection:
            return list(connection.execute(sa.select(table.c[column]).order_by(table.c[column])).scalars())

    @property
    def tasks(self) -> list[int]:
        return self.ids(self.tables.task)

    def prune(self, status: TaskStatus = SUCCEEDED, *, archive: bool = False, most: int = 1000, after: Mark | None = None) -> Any:
        """Remove one batch of the tasks that ended more than an hour ago, in a transaction as the engine makes them."""
        with self.sql.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(self.dialect.begin)
            removed = self.dialect.prune(connection, Batch(status=status, kept_for=3600, archive=archive, most=most, after=after))
            connection.commit()
        return removed

    def lease(self) -> tuple[str | None, bool] | None:
        """Return who has the pruner's lease, and whether it is held at this moment."""
        c = self.tables.lease.c
        with self.sql.connect() as connection:
            row = connection.execute(sa.select(c.node, c.expires_at > db_after(0)).where(c.name == LEASE)).one_or_none()
        return None if row is None else (row[0], bool(row[1]))


MakeStore = Callable[..., Store]


@pytest.fixture
def make_store(database_url: str, make_app: MakeApp) -> MakeStore:
    """Make the app on this test's database; the arguments are its settings."""

    def make(**settings: Any) -> Store:
        host = make_app(database_url, **{f"TASKENGINE_{key.upper()}": value for key, value in settings.items()})
        known = host.engine.host(host.app)
        return Store(host, known.dialect(known.sql_engine().dialect.name))

    return make


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    """Return the rows of this test's database."""
    return make_store()


# --- one batch ----------------------------------------------------------------------------------------------------------


def test_r26_only_the_status_and_the_age_that_were_asked_for_go(store: Store) -> None:
    """A batch removes the tasks of one status that ended long enough ago, and none that live."""
    old, young = store.ended(age=3700), store.ended(age=3500)
    others = [store.ended(status, age=DAY) for status in (FAILED, DEAD, CANCELLED)]
    with store.transaction() as connection:
        connection.execute(sa.insert(store.tables.task).values(type="noted", available_at=db_after(-DAY)))
    removed = store.prune()
    assert removed.count == 1
    assert old not in store.tasks
    assert {young, *others} < set(store.tasks)
    assert len(store.tasks) == 5


def test_r26_the_oldest_go_first_and_a_batch_is_bounded(store: Store) -> None:
    """Each batch takes so many of the oldest; the next one continues where it ended, whatever order the ids have."""
    by_age = [store.ended(age=DAY + i) for i in range(5)][::-1]
    first = store.prune(most=2)
    assert (first.count, first.last.id) == (2, by_age[1])
    assert store.tasks == sorted(by_age[2:])
    second = store.prune(most=2, after=first.last)
    assert (second.count, second.last.id) == (2, by_age[3])
    third = store.prune(most=2, after=second.last)
    assert (third.count, store.tasks) == (1, [])


def test_tasks_that_ended_in_the_same_instant_are_told_apart(store: Store) -> None:
    """A group of completions has one time: the mark of a batch names the task, so that none of them is passed over."""
    with store.sql.connect() as connection:
        moment = connection.execute(sa.select(db_after(-DAY))).scalar_one()
    for _ in range(5):
        store.ended(finished_at=moment)
    after = None
    for expected in (2, 2, 1):
        removed = store.prune(most=2, after=after)
        assert removed.count == expected
        after = removed.last
    assert store.tasks == []


def test_deleting_takes_the_failed_attempts_along(store: Store) -> None:
    """The history of a deleted task goes with it, that of every other task stays."""
    gone, kept = store.ended(DEAD), store.ended(DEAD, age=60)
    for task_id in (gone, kept):
        store.failed_attempt(task_id, 1)
        store.failed_attempt(task_id, 2)
    store.prune(DEAD)
    assert store.tasks == [kept]
    assert store.ids(store.tables.attempt, "task_id") == [kept, kept]


def test_archiving_moves_every_column_and_keeps_the_failed_attempts(store: Store) -> None:
    """The archive holds the row as it was, with the time of the move; its failed attempts can still be read."""
    columns: dict[str, Any] = {
        "payload": '{"a": [1, "ü"]}',
        "priority": 7,
        "attempts": 3,
        "max_attempts": 3,
        "claims": 4,
        "claimed_by": "node:1",
        "claimed_at": db_after(-DAY),
        "last_error": "ValueError: no",
        "trace_context": '{"traceparent": "00"}',
        "result": "[1]",
        "idempotency_key": "key",
        "cancel_requested_at": db_after(-DAY),
    }
    task_id = store.ended(DEAD, **columns)
    store.failed_attempt(task_id)
    with store.sql.connect() as connection:
        before = dict(connection.execute(sa.select(store.tables.task)).one()._mapping)
    store.prune(DEAD, archive=True)
    assert store.tasks == []
    assert store.ids(store.tables.attempt, "task_id") == [task_id]
    with store.sql.connect() as connection:
        row = dict(connection.execute(sa.select(store.tables.archive)).one()._mapping)
    assert row.pop("archived_at") > before["finished_at"]
    assert row == before


def test_a_task_brought_back_by_hand_can_be_archived_again(store: Store) -> None:
    """A row copied back from the archive does not block the pruner: its newer state replaces the older."""
    task_id = store.ended(DEAD)
    store.prune(DEAD, archive=True)
    store.ended(DEAD, id=task_id, last_error="again")
    store.prune(DEAD, archive=True)
    with store.sql.connect() as connection:
        assert connection.execute(sa.select(store.tables.archive.c.last_error)).scalar_one() == "again"


@pytest.mark.parametrize("archive", [False, True])
def test_an_idempotency_key_is_free_once_its_task_is_removed(store: Store, archive: bool) -> None:
    """A key blocks while its row stands, also when the task has ended, and no longer once that is deleted or archived."""
    engine = store.host.engine
    old = store.ended(idempotency_key="order-7")
    with store.host.app.app_context():
        again = engine.enqueue("noted", idempotency_key="order-7")
        assert (again.id, again.created) == (old, False)
        store.host.db.session.commit()
        store.prune(archive=archive)
        new = engine.enqueue("noted", idempotency_key="order-7")
        assert new.created
        assert new.id > old
        store.host.db.session.commit()


def test_pruning_races_with_retry_delete_and_cancel(store: Store) -> None:
    """Whatever people do to the same tasks at the same time: nobody waits for the other in a circle, each task is in one place."""
    ids = [store.ended(status, idempotency_key=f"{status}-{i}") for i in range(60) for status in (DEAD, CANCELLED)]
    for task_id in ids:
        store.failed_attempt(task_id)

    def act(seed: int) -> list[int]:
        rng, deleted = random.Random(seed), []
        for task_id in rng.sample(ids, len(ids)):
            verb = rng.choice([manage.retry, manage.delete, manage.cancel, None])
            if verb is None:
                store.prune(rng.choice([DEAD, CANCELLED]), archive=rng.random() < 0.5, most=3)
                continue
            with suppress(TaskNotFound, TaskStateError), store.transaction() as connection:
                verb(connection, store.tables, task_id)
                if verb is manage.delete:
                    deleted.append(task_id)
        return deleted

    with ThreadPoolExecutor(4) as pool:
        gone = {task_id for deleted in pool.map(act, range(4)) for task_id in deleted}
    archived, left = store.ids(store.tables.archive), store.tasks
    assert not set(archived) & set(left)
    assert not gone & {*archived, *left}
    assert set(store.ids(store.tables.attempt, "task_id")) == {*archived, *left}


# --- the rules ----------------------------------------------------------------------------------------------------------


def test_rules_follow_the_settings() -> None:
    """Every status that is not kept for ever has a rule; the strategy holds for all of them."""
    retention = Retention(succeeded=DAY, cancelled=60, failed=None, dead=5 * DAY, strategy="archive")
    assert [(rule.status, rule.kept_for, rule.archive) for rule in rules(retention)] == [
        (CANCELLED, 60, True),
        (DEAD, 5 * DAY, True),
        (SUCCEEDED, DAY, True),
    ]


def test_what_is_deleted_at_completion_is_never_archived() -> None:
    """With ``succeeded`` 0 those that another node left behind are deleted too, whatever the strategy."""
    assert [(rule.status, rule.archive) for rule in rules(Retention(succeeded=0, strategy="archive"))] == [
        (CANCELLED, True),
        (SUCCEEDED, False),
    ]


def test_an_age_given_by_hand_spares_what_is_kept_for_ever() -> None:
    """Without a status an age means only what the settings would remove one day; a status that is named is meant."""
    assert {rule.status for rule in rules(Retention(), older_than=60)} == {SUCCEEDED, CANCELLED}
    assert [(rule.status, rule.kept_for) for rule in rules(Retention(), [DEAD], 60)] == [(DEAD, 60)]
    with pytest.raises(InvalidArgument, match="--older-than"):
        rules(Retention(), [DEAD])
    with pytest.raises(InvalidArgument, match="has not ended"):
        rules(Retention(), [TaskStatus.RUNNING], 60)


# --- the pruner ---------------------------------------------------------------------------------------------------------


@contextmanager
def pruning(store: Store, node: str) -> Iterator[Pruner]:
    """Run the pruner of a node."""
    known = store.host.engine.host(store.host.app)
    watchdog = Watchdog()
    database = Database(known, watchdog)
    pruner = Pruner(database, known.settings, lambda: node)
    watchdog.start()
    pruner.start()
    try:
        yield pruner
    finally:
        pruner.stop()
        watchdog.stop()
        database.close()


def test_r26_the_pruner_goes_on_until_nothing_is_left(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run removes all that is over, status by status and batch by batch, and gives the lease back at once."""
    monkeypatch.setattr("flask_taskengine.runtime.pruner.BATCH", 3)
    store = make_store(retention={"succeeded": "1h", "cancelled": "1h", "interval": "1h"})
    for _ in range(7):
        store.ended()
        store.ended(CANCELLED)
    kept = [store.ended(DEAD), store.ended(age=60)]
    with pruning(store, "a"):
        wait_until(lambda: store.tasks == kept, what="the pruner to remove all that is over")
        wait_until(lambda: store.lease() == (None, False), what="the pruner to give its lease back")


def test_the_pruner_runs_every_interval(make_store: MakeStore) -> None:
    """What is over later goes with a later run."""
    store = make_store(retention={"succeeded": "1h", "interval": "50ms"})
    with pruning(store, "a"):
        for _ in range(3):
            store.ended()
            wait_until(lambda: store.tasks == [], what="the next run")


def test_only_one_node_prunes_in_an_interval(make_store: MakeStore) -> None:
    """A node that comes when another has just finished leaves it at that: not every worker does the same clean-up."""
    store = make_store(retention={"succeeded": "1h", "interval": "1h"})
    with pruning(store, "a"):
        wait_until(lambda: store.lease() == (None, False), what="the first run")
    task_id = store.ended()
    looked = threading.Event()
    with pruning(store, "b") as second:
        original = second._seconds_left

        def looking(node: str) -> float:
            try:
                return original(node)
            finally:
                looked.set()

        second._seconds_left = looking  # type: ignore[method-assign]
        second._loop.wake()
        assert looked.wait(10)
    assert store.tasks == [task_id]


def test_a_node_leaves_the_work_to_the_one_that_has_the_lease(make_store: MakeStore) -> None:
    """While another node holds the lease nothing is pruned here; when that has died and its lease is over, this node takes over."""
    store = make_store(retention={"succeeded": "1h", "interval": "1h"}, lease="1s", heartbeat_interval="500ms")
    store.ended()
    with store.transaction() as connection:
        assert nodes.take_lease(connection, store.tables, LEASE, "dead", 1)
    with pruning(store, "b"):
        wait_until(lambda: store.tasks == [], what="the lease of the dead node to end")


def test_a_pruner_that_is_stopped_leaves_the_rest_to_the_next_at_once(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was broken off is no run: the next node does not wait for the interval."""
    store = make_store(retention={"succeeded": "1h", "cancelled": None, "interval": "1h"})
    monkeypatch.setattr("flask_taskengine.runtime.pruner.BATCH", 1)
    for _ in range(3):
        store.ended()
    first_batch, go_on = threading.Event(), threading.Event()
    original = store.dialect.prune

    def slow(connection: sa.Connection, batch: Batch) -> Any:
        first_batch.set()
        go_on.wait(10)
        return original(connection, batch)

    with monkeypatch.context() as patch:
        patch.setattr(store.dialect, "prune", slow)
        with pruning(store, "a") as pruner:
            assert first_batch.wait(10)
            stopping = threading.Thread(target=pruner.stop)
            stopping.start()
            wait_until(lambda: pruner._loop.stopping)
            go_on.set()
            stopping.join(10)
    assert len(store.tasks) == 2
    with pruning(store, "b"):
        wait_until(lambda: store.tasks == [], what="the second node to finish the run")


def test_a_node_that_is_not_registered_prunes_nothing(make_store: MakeStore) -> None:
    """Before the worker has joined it takes no lease."""
    store = make_store(retention={"succeeded": "1h", "interval": "50ms"})
    store.ended()
    with pruning(store, "") as idle:
        assert idle._run_once() == 1.0
        assert store.lease() is None


def test_a_worker_prunes_while_it_is_busy(make_store: MakeStore) -> None:
    """Retention does not wait for a quiet hour: it runs beside a stream of tasks, and their succession goes on."""
    store = make_store(retention={"succeeded": "1h", "interval": "50ms"}, concurrency=2)
    engine, app, db = store.host.engine, store.host.app, store.host.db
    old = [store.ended() for _ in range(5)]
    rounds: list[int] = []

    @engine.task("again")  # type: ignore[untyped-decorator]
    def again(payload: int) -> None:
        rounds.append(payload)
        engine.enqueue("again", payload + 1)

    with app.app_context():
        engine.enqueue("again", 0)
        engine.enqueue("again", 0)
        db.session.commit()
    worker = Worker(engine.host(app), WorkerOptions(concurrency=2), joined=lambda node: None)
    worker.start()
    try:
        wait_until(lambda: not set(old) & set(store.tasks), what="the worker to prune")
        busy = len(rounds)
        wait_until(lambda: len(rounds) > busy + 5, what="the stream of tasks to go on")
    finally:
        worker.stop()


# --- by hand ------------------------------------------------------------------------------------------------------------


def run(store: Store, *arguments: str) -> Any:
    """Run a command of the app, and return its result."""
    return store.host.app.test_cli_runner().invoke(taskengine, arguments)


def test_prune_by_hand_follows_the_settings(store: Store) -> None:
    """Without options the command does what the workers do, and says how many of each status went."""
    store.ended(age=8 * DAY)
    kept = [store.ended(age=6 * DAY), store.ended(DEAD, age=1000 * DAY)]
    ended = run(store, "prune")
    assert (ended.exit_code, ended.output) == (0, "deleted 0 CANCELLED, deleted 1 SUCCEEDED\n")
    assert store.tasks == kept


def test_prune_by_hand_takes_a_status_and_an_age(store: Store) -> None:
    """What is kept for ever can be named; the rest stays."""
    store.ended(DEAD, age=40 * DAY)
    kept = [store.ended(DEAD, age=20 * DAY), store.ended(age=40 * DAY)]
    ended = run(store, "prune", "--status", "dead", "--older-than", "30d", "--json")
    assert json.loads(ended.output) == {"dry_run": False, "pruned": {"DEAD": 1}}
    assert store.tasks == kept


def test_prune_by_hand_can_only_count(make_store: MakeStore) -> None:
    """A dry run says what would happen, and changes nothing."""
    store = make_store(retention={"succeeded": "1d", "cancelled": None, "strategy": "archive"})
    ids = [store.ended(age=2 * DAY), store.ended(age=60)]
    ended = run(store, "prune", "--dry-run")
    assert ended.output == "would archive 1 SUCCEEDED\n"
    assert store.tasks == ids


def test_prune_by_hand_names_the_remedy(make_store: MakeStore) -> None:
    """Nothing to do, an impossible duration and a status that is kept for ever are each said in a sentence."""
    store = make_store(retention={"succeeded": None, "cancelled": None})
    assert "--status and --older-than" in run(store, "prune").output
    assert "no duration" in run(store, "prune", "--older-than", "soon").output
    refused = run(store, "prune", "--status", "failed", "--json")
    assert refused.exit_code == 1
    assert "--older-than" in json.loads(refused.output)["error"]

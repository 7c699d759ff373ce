"""The reaper and what it relies on: leases, beats and the database's clock, the same on every database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from flask_taskengine import RetryPolicy, Task, TaskStatus
from flask_taskengine.domain.task import Claimed
from flask_taskengine.runtime import reaper
from flask_taskengine.runtime.completer import Completer
from flask_taskengine.runtime.database import Database
from flask_taskengine.runtime.heartbeat import Heartbeat, Steadiness
from flask_taskengine.runtime.reaper import PAGE, Reaper, take_back
from flask_taskengine.runtime.watchdog import Watchdog
from flask_taskengine.signals import namespace
from flask_taskengine.store import nodes, tasks
from flask_taskengine.store.clock import db_after
from tests.support.hosts import MakeApp

LEASE = 60.0


class Cluster:
    """Nodes and tasks in a database, as workers would have written them, and one node that acts."""

    def __init__(self, url: str, make_app: MakeApp) -> None:
        self.app, self.db, self.engine = make_app(url, TASKENGINE_LEASE=LEASE, TASKENGINE_HEARTBEAT_INTERVAL=15)
        self.engine.task("work", retry=RetryPolicy(max_attempts=3, base_backoff=60, jitter=0))(lambda payload: None)
        self.watchdog = Watchdog()
        self.database = Database(self.engine.host(self.app), self.watchdog)
        self.completer = Completer(self.database)
        self.completer.node = "me"
        self.line = self.database.line()
        self.steadiness = Steadiness(self.database.host.settings)
        self.reaper = Reaper(self.database, self.completer, self.steadiness)
        self.reaper.node = "me"
        self.tables = self.database.tables
        self.watchdog.start()

    def close(self) -> None:
        self.reaper.stop()
        self.line.close()
        self.database.close()
        self.watchdog.stop()

    def node(self, name: str, silent: float = 0) -> None:
        """Register a node, or let it fall silent so many seconds ago."""
        n = self.tables.node
        with self.line.statement() as connection:
            if connection.execute(sa.select(n.c.id).where(n.c.id == name)).one_or_none() is None:
                row = {"id": name, "label": name, "host": "h", "pid": 1, "version": "1", "concurrency": 8, "types": ["work"], "limits": {}}
                nodes.register(connection, self.tables, row)
            connection.execute(sa.update(n).where(n.c.id == name).values(heartbeat_at=db_after(-silent)))

    def running(self, node: str, number: int = 1, task_type: str = "work", **options: Any) -> list[int]:
        """Enqueue tasks and let a node claim them."""
        with self.app.app_context():
            made = self.engine.enqueue_many([{"type": task_type, "payload": i, **options} for i in range(number)])
            self.db.session.commit()
        with self.line.statement() as connection:
            claimed = self.database.dialect.claim(connection, node, {task_type: number}, number)
        assert len(claimed) == number
        return [result.id for result in made]

    def task(self, task_id: int) -> Task:
        with self.app.app_context():
            task: Task | None = self.engine.get(task_id)
        assert task is not None
        return task

    def attempts(self, task_id: int) -> Sequence[Any]:
        with self.line.statement() as connection:
            return tasks.attempts_of(connection, self.tables, task_id)

    def take_back(self, node: str, lease: float | None = LEASE) -> bool:
        return take_back(self.database, self.line, self.completer, node, f"node {node} died", lease)

    def now(self) -> datetime:
        with self.line.statement() as connection:
            moment: datetime = connection.execute(sa.select(db_after(0.0))).scalar_one()
        return moment

    def be_heard(self, seconds: float) -> None:
        """Let this node have beaten without a gap for so long."""
        self.node("me")
        self.steadiness.end()
        self.steadiness.note(self.now() - timedelta(seconds=seconds))


@pytest.fixture
def cluster(database_url: str, make_app: MakeApp) -> Iterator[Cluster]:
    """Make a cluster on every database."""
    with closing(Cluster(database_url, make_app)) as cluster:
        yield cluster


@pytest.fixture
def postgresql_cluster(postgresql_url: str, make_app: MakeApp) -> Iterator[Cluster]:
    """Make a cluster on PostgreSQL."""
    with closing(Cluster(postgresql_url, make_app)) as cluster:
        yield cluster


@pytest.fixture
def sqlite_cluster(sqlite_url: str, make_app: MakeApp) -> Iterator[Cluster]:
    """Make a cluster on SQLite."""
    with closing(Cluster(sqlite_url, make_app)) as cluster:
        yield cluster


@pytest.fixture
def events() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Collect what is announced about tasks."""
    seen: list[tuple[str, dict[str, Any]]] = []
    receivers: list[Callable[..., None]] = []
    for name, signal in namespace.items():

        def note(sender: Any, _name: str = name, **fields: Any) -> None:
            seen.append((_name, fields))

        receivers.append(note)
        signal.connect(note)
    yield seen
    for signal, receiver in zip(namespace.values(), receivers, strict=True):
        signal.disconnect(receiver)


# --- what becomes of a task ---------------------------------------------------------------------------------------------


def test_r12_task_of_a_silent_node_is_requeued_with_its_attempt_counted(cluster: Cluster, events: list[tuple[str, Any]]) -> None:
    """An orphaned task waits for its backoff, its attempt counts and is kept as a failed one of the node that died."""
    cluster.node("dead")
    (task_id,) = cluster.running("dead")
    cluster.node("dead", silent=LEASE + 1)
    events.clear()
    assert cluster.take_back("dead")
    task = cluster.task(task_id)
    assert (task.status, task.attempts, task.claims) == (TaskStatus.PENDING, 1, 1)
    assert task.last_error == "LeaseLostError: node dead died"
    assert 55 < (task.available_at - cluster.now()).total_seconds() <= 60
    (attempt,) = cluster.attempts(task_id)
    assert (attempt["node"], attempt["attempt"], attempt["error_class"]) == ("dead", 1, "LeaseLostError")
    assert [name for name, _ in events] == ["task_retried", "task_requeued", "node_expired"]
    assert events[0][1]["duration"] >= 0
    common = {"task_id": task_id, "task_type": "work", "attempt": 1, "token": 1, "node": "me"}
    assert events[1][1] == common | {"reason": "orphaned", "duration": events[0][1]["duration"]}


def test_r12_exhausted_task_of_a_silent_node_is_dead(cluster: Cluster, events: list[tuple[str, Any]]) -> None:
    """A task whose last attempt was lost ends DEAD with an error that says so, and its key stays its own (faults 10, 11)."""
    cluster.node("dead")
    (task_id,) = cluster.running("dead", max_attempts=1, idempotency_key="once")
    cluster.node("dead", silent=LEASE + 1)
    events.clear()
    assert cluster.take_back("dead")
    task = cluster.task(task_id)
    assert (task.status, task.attempts, task.idempotency_key) == (TaskStatus.DEAD, 1, "once")
    assert task.finished_at is not None
    assert "node dead died" in (task.last_error or "")
    assert [name for name, _ in events] == ["task_dead", "node_expired"]


def test_r12_cancelled_task_of_a_silent_node_is_cancelled(cluster: Cluster) -> None:
    """A cancel request wins over the retry."""
    cluster.node("dead")
    (task_id,) = cluster.running("dead")
    with cluster.app.app_context():
        assert cluster.engine.cancel(task_id) is TaskStatus.RUNNING
        cluster.db.session.commit()
    assert cluster.take_back("dead", None)
    assert cluster.task(task_id).status is TaskStatus.CANCELLED


def test_r12_unknown_type_is_retried_by_the_default_policy(cluster: Cluster) -> None:
    """A node that does not know the type decides by the settings' policy (faults 7)."""
    cluster.node("dead")
    (task_id,) = cluster.running("dead", task_type="theirs")
    assert cluster.take_back("dead", None)
    task = cluster.task(task_id)
    assert (task.status, task.attempts) == (TaskStatus.PENDING, 1)
    assert 0 < (task.available_at - cluster.now()).total_seconds() <= 6


@pytest.mark.sqlite
def test_r12_unreadable_payload_keeps_no_task_from_ending(sqlite_cluster: Cluster) -> None:
    """A row whose payload is no JSON is taken back like any other (faults 104); PostgreSQL stores none."""
    cluster = sqlite_cluster
    cluster.node("dead")
    ids = cluster.running("dead", 2)
    with cluster.line.statement() as connection:
        connection.exec_driver_sql("UPDATE taskengine_task SET payload = '{no json' WHERE id = ?", (ids[0],))
    assert cluster.take_back("dead", None)
    with cluster.line.statement() as connection:
        assert tasks.running_on(connection, cluster.tables, "dead") == []


# --- whose tasks --------------------------------------------------------------------------------------------------------


def test_r12_node_within_its_lease_keeps_its_tasks(cluster: Cluster) -> None:
    """A node that was heard within its lease is alive, however long its task takes (faults 1)."""
    cluster.node("alive")
    (task_id,) = cluster.running("alive")
    cluster.node("alive", silent=LEASE - 2)
    assert not cluster.take_back("alive")
    assert cluster.task(task_id).status is TaskStatus.RUNNING


def test_r12_node_without_a_row_has_lost_its_tasks(cluster: Cluster) -> None:
    """What runs under a name that nobody has is an orphan."""
    cluster.node("gone")
    (task_id,) = cluster.running("gone")
    with cluster.line.statement() as connection:
        nodes.remove(connection, cluster.tables, ["gone"])
        assert tasks.orphaned_nodes(connection, cluster.tables, LEASE) == ["gone"]
    assert cluster.take_back("gone")
    assert cluster.task(task_id).status is TaskStatus.PENDING


def test_r12_expired_node_can_neither_beat_nor_claim(cluster: Cluster) -> None:
    """Once its tasks were taken, a node that wakes up can do nothing under its old name."""
    cluster.node("dead", silent=LEASE + 1)
    assert cluster.take_back("dead")
    with cluster.app.app_context():
        cluster.engine.enqueue("work")
        cluster.db.session.commit()
    with cluster.line.statement() as connection:
        assert nodes.beat(connection, cluster.tables, ["dead"]) == {}
        assert cluster.database.dialect.claim(connection, "dead", {"work": 1}, 1) == []


def test_r12_node_that_beats_after_a_long_silence_has_lost_nothing(cluster: Cluster) -> None:
    """Silence alone is no loss: while nobody has taken its tasks, a node that is heard again goes on."""
    cluster.node("late")
    (task_id,) = cluster.running("late")
    cluster.node("late", silent=10 * LEASE)
    with cluster.line.statement() as connection:
        assert list(nodes.beat(connection, cluster.tables, ["late"])) == ["late"]
    assert not cluster.take_back("late")
    assert cluster.task(task_id).status is TaskStatus.RUNNING


def test_r12_more_than_a_page_is_taken(cluster: Cluster) -> None:
    """All tasks of a node are taken, page by page."""
    cluster.node("dead")
    ids = cluster.running("dead", 2 * PAGE + 1)
    assert cluster.take_back("dead", None)
    assert {cluster.task(ids[i]).status for i in (0, PAGE, 2 * PAGE)} == {TaskStatus.PENDING}


@pytest.mark.postgresql
def test_r12_rows_that_others_have_locked_starve_nobody(postgresql_cluster: Cluster) -> None:
    """A page of locked rows does not keep the rest from being taken; they follow once they are free (faults 8)."""
    cluster = postgresql_cluster
    cluster.node("dead")
    ids = cluster.running("dead", PAGE + 3)
    t = cluster.tables.task
    with cluster.database.engine.begin() as other:
        other.execute(sa.select(t.c.id).where(t.c.id.in_(ids[: PAGE + 1])).with_for_update()).all()
        assert not cluster.take_back("dead", None)
        assert [cluster.task(i).status for i in (ids[0], ids[-2], ids[-1])] == [
            TaskStatus.RUNNING,
            TaskStatus.PENDING,
            TaskStatus.PENDING,
        ]
    assert cluster.take_back("dead", None)
    assert cluster.task(ids[0]).status is TaskStatus.PENDING


@pytest.mark.postgresql
def test_r12_node_that_claims_at_this_moment_is_left_alone(postgresql_cluster: Cluster) -> None:
    """A claim that is not committed yet holds the node's row: its tasks are taken afterwards, none is overlooked."""
    cluster = postgresql_cluster
    cluster.node("dead")
    (task_id,) = cluster.running("dead")
    with cluster.app.app_context():
        late = cluster.engine.enqueue("work").id
        cluster.db.session.commit()
    with cluster.database.engine.begin() as claiming:
        assert [task.id for task in cluster.database.dialect.claim(claiming, "dead", {"work": 1}, 1)] == [late]
        assert not cluster.take_back("dead", None)
    assert cluster.take_back("dead", None)
    assert {cluster.task(i).status for i in (task_id, late)} == {TaskStatus.PENDING}


# --- when the reaper acts -----------------------------------------------------------------------------------------------


def test_r12_reaper_acts_after_a_full_lease_of_beats(cluster: Cluster) -> None:
    """It takes what is orphaned, and nothing before its own node has been heard for a whole lease."""
    cluster.node("dead")
    (task_id,) = cluster.running("dead")
    cluster.node("dead", silent=LEASE + 1)
    cluster.reaper._run_once()
    cluster.be_heard(LEASE - 5)
    cluster.reaper._run_once()
    assert cluster.task(task_id).status is TaskStatus.RUNNING
    cluster.be_heard(LEASE + 1)
    assert LEASE / 8 < cluster.reaper._run_once() < LEASE / 2
    task = cluster.task(task_id)
    assert task.status is TaskStatus.PENDING
    assert "silent for longer than its lease of 1 min" in (task.last_error or "")


def test_r12_outage_of_the_database_makes_nobody_an_orphan(cluster: Cluster) -> None:
    """After an hour without the database every node looks silent; nobody is taken before all could have beaten again."""
    cluster.be_heard(2 * LEASE)
    cluster.node("other")
    (task_id,) = cluster.running("other")
    cluster.node("me", silent=3600)
    cluster.node("other", silent=3600)
    cluster.reaper._run_once()
    assert cluster.task(task_id).status is TaskStatus.RUNNING, "its own last beat is too old"
    cluster.node("me")
    with cluster.line.statement() as connection:
        cluster.steadiness.note(max(nodes.beat(connection, cluster.tables, ["me"]).values()))
    since = cluster.steadiness.since
    assert since is not None
    cluster.reaper._run_once()
    assert cluster.task(task_id).status is TaskStatus.RUNNING


def test_r12_expired_node_reaps_nobody(cluster: Cluster) -> None:
    """A node that has lost its own lease calls nobody silent."""
    cluster.node("dead")
    (task_id,) = cluster.running("dead")
    cluster.node("dead", silent=LEASE + 1)
    cluster.be_heard(LEASE + 1)
    with cluster.line.transaction() as connection:
        assert nodes.expire(connection, cluster.tables, "me", None)
    cluster.reaper._run_once()
    assert cluster.task(task_id).status is TaskStatus.RUNNING


def test_r12_names_of_dead_nodes_are_removed_after_a_day(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of short-lived workers leave no rows behind for ever (faults P152)."""
    monkeypatch.setattr(reaper, "_FORGET_EVERY", 1)
    for name, silent in [("old", 90_000), ("recent", 3600)]:
        cluster.node(name, silent=silent)
    cluster.be_heard(LEASE + 1)
    cluster.reaper._run_once()
    with cluster.line.statement() as connection:
        assert set(connection.execute(sa.select(cluster.tables.node.c.id)).scalars()) == {"recent", "me"}


def test_r12_forgotten_node_runs_nothing(cluster: Cluster) -> None:
    """A name under which something runs is kept, whatever its age."""
    cluster.node("old")
    cluster.running("old")
    cluster.node("old", silent=90_000)
    with cluster.line.statement() as connection:
        assert nodes.forget_expired(connection, cluster.tables, 86_400) == 0


# --- beats --------------------------------------------------------------------------------------------------------------


def test_r12_beat_tells_which_nodes_have_lost_their_lease(cluster: Cluster) -> None:
    """One statement beats for all; names that are expired or gone are told, the others stay."""
    for name in ("a", "b"):
        cluster.node(name, silent=30)
    with cluster.line.transaction() as connection:
        nodes.expire(connection, cluster.tables, "b", None)
    lost: list[str] = []
    heartbeat = Heartbeat(cluster.database, cluster.steadiness, lost.append, ["a", "b", "nobody"])
    heartbeat._run_once()
    heartbeat._run_once()
    assert lost == ["b", "nobody"]
    with cluster.line.statement() as connection:
        heard = nodes.heard(connection, cluster.tables, "a", cluster.now())
        assert heard is not None
        assert heard[0] < 5
        assert nodes.heard(connection, cluster.tables, "b", cluster.now()) is None
    heartbeat.stop()


def test_r12_failed_beat_loses_nothing_but_ends_the_row_of_beats(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the database does not answer, nothing is concluded; when it does, counting begins anew."""
    cluster.node("a")
    lost: list[str] = []
    heartbeat = Heartbeat(cluster.database, cluster.steadiness, lost.append, ["a"])
    heartbeat._run_once()
    first = cluster.steadiness.since
    with monkeypatch.context() as patch:

        def refuse(*_: Any) -> None:
            raise sa.exc.OperationalError("UPDATE", {}, ConnectionError("gone"))

        patch.setattr(nodes, "beat", refuse)
        with pytest.raises(sa.exc.OperationalError):
            heartbeat._run_once()
    assert (lost, cluster.steadiness.since) == ([], None)
    heartbeat._run_once()
    assert first is not None
    assert cluster.steadiness.since is not None
    assert cluster.steadiness.since >= first
    heartbeat.stop()


@pytest.mark.parametrize(("gap", "steady"), [(15, True), (45, True), (46, False), (3600, False), (-1, False)])
def test_r12_gap_or_jump_of_the_clock_ends_the_row_of_beats(make_app: MakeApp, sqlite_url: str, gap: float, steady: bool) -> None:
    """Beats are steady while each follows the last within LEASE less HEARTBEAT_INTERVAL by the database's clock."""
    app, _, engine = make_app(sqlite_url, TASKENGINE_LEASE=LEASE, TASKENGINE_HEARTBEAT_INTERVAL=15)
    steadiness = Steadiness(engine.host(app).settings)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    steadiness.note(start)
    steadiness.note(start + timedelta(seconds=gap))
    assert steadiness.since == (start if steady else start + timedelta(seconds=gap))


def test_claims_carry_what_the_reaper_needs(cluster: Cluster) -> None:
    """What is locked for taking back is a claim without its payload, and the seconds since."""
    cluster.node("dead")
    (task_id,) = cluster.running("dead")
    with cluster.line.transaction() as connection:
        ((task, seconds),) = tasks.lock_running_on(connection, cluster.tables, "dead", 5)
    assert isinstance(task, Claimed)
    assert (task.id, task.payload, task.attempts) == (task_id, None, 1)
    assert 0 <= seconds < 30

"""Random histories on several nodes, beside a model that says by hand what each verb must do.

``TASKENGINE_TEST_EXAMPLES`` sets how many histories there are; more than the default are different ones every time.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flask_taskengine import RetryPolicy
from flask_taskengine.domain.errors import TaskNotFound, TaskStateError
from flask_taskengine.domain.outcome import Ending, Failure, Interrupted, Raised, Rejected, Returned, Snoozed, TimedOut
from flask_taskengine.domain.states import TaskStatus
from flask_taskengine.domain.task import Claimed
from flask_taskengine.runtime.completer import Ended
from flask_taskengine.runtime.reaper import take_back
from flask_taskengine.runtime.worker import Worker
from flask_taskengine.store import nodes
from flask_taskengine.store.retention import Batch
from tests.support.shop import Shop

DEFAULT_EXAMPLES = 12
EXAMPLES = int(os.environ.get("TASKENGINE_TEST_EXAMPLES", DEFAULT_EXAMPLES))
TYPES = ("a", "b")
MAX_ATTEMPTS = 2
LATER = 3600.0
ERROR = Failure("ValueError", "no")
LIVE = frozenset({"PENDING", "RUNNING"})
ROOMS = st.fixed_dictionaries(dict.fromkeys(TYPES, st.integers(1, 3)))


@dataclass(slots=True)
class Row:
    """What the model knows of a task."""

    type: str
    priority: int
    key: str | None
    max_attempts: int | None
    due: bool = True
    status: str = "PENDING"
    attempts: int = 0
    claims: int = 0
    cancel: bool = False
    node: str | None = None

    @property
    def limit(self) -> int:
        return MAX_ATTEMPTS if self.max_attempts is None else self.max_attempts


class Histories(RuleBasedStateMachine):
    """Drives the verbs, the claim, the ends, the reaper and the pruner, and keeps the model beside them."""

    shop: Shop
    worker: Worker
    tasks: Bundle[int] = Bundle("tasks")
    claims: Bundle[Claimed] = Bundle("claims")

    @initialize()
    def begin(self) -> None:
        """Start with no task and two nodes."""
        self.model: dict[int, Row] = {}
        self.nodes: list[str] = []
        self.born = 0
        for table in ("attempt", "task", "node"):
            self.shop.sql(f"DELETE FROM taskengine_{table}")
        for _ in range(2):
            self.join()

    # --- verbs ----------------------------------------------------------------------------------------------------------

    @rule(
        target=tasks,
        task_type=st.sampled_from(TYPES),
        priority=st.integers(0, 2),
        key=st.sampled_from([None, None, "k1", "k2"]),
        max_attempts=st.sampled_from([None, None, 1, 3]),
        later=st.booleans(),
        commits=st.sampled_from([True, True, True, False]),
    )
    def enqueue(self, task_type: str, priority: int, key: str | None, max_attempts: int | None, later: bool, commits: bool) -> Any:
        """Write a task; with a key that exists, find it; rolled back, leave nothing."""
        options: dict[str, Any] = {"priority": priority, "idempotency_key": key, "max_attempts": max_attempts}
        with self.shop.app.app_context():
            verb = self.shop.engine.enqueue_after if later else self.shop.engine.enqueue
            made = verb(task_type, None, *([LATER] if later else []), **options)
            (self.shop.db.session.commit if commits else self.shop.db.session.rollback)()
        known = next((task_id for task_id, row in self.model.items() if key is not None and row.key == key), None)
        assert made.created == (known is None)
        assert known is None or made.id == known
        if commits and made.created:
            self.model[made.id] = Row(task_type, priority, key, max_attempts, due=not later)
            return made.id
        return multiple()

    @rule(task_id=tasks, reset=st.booleans())
    def retry(self, task_id: int, reset: bool) -> None:
        """Only what has ended badly; one attempt more if there is none left."""
        row = self.model.get(task_id)
        if self._verb("retry", task_id, row is not None and row.status in {"DEAD", "FAILED", "CANCELLED"}, reset_attempts=reset):
            assert row is not None
            row.status, row.due, row.cancel = "PENDING", True, False
            if reset:
                row.attempts = 0
            elif row.max_attempts is not None:
                row.max_attempts = max(row.max_attempts, row.attempts + 1)

    @rule(task_id=tasks)
    def cancel(self, task_id: int) -> None:
        """At once while it waits, by a request while it runs."""
        row = self.model.get(task_id)
        if self._verb("cancel", task_id, row is not None and row.status in LIVE):
            assert row is not None
            row.cancel = True
            if row.status == "PENDING":
                row.status = "CANCELLED"

    @rule(task_id=tasks)
    def delete(self, task_id: int) -> None:
        """Whatever does not run."""
        row = self.model.get(task_id)
        if self._verb("delete", task_id, row is not None and row.status != "RUNNING"):
            del self.model[task_id]

    def _verb(self, name: str, task_id: int, allowed: bool, **options: Any) -> bool:
        refused: TaskNotFound | TaskStateError | None = None
        with self.shop.app.app_context():
            try:
                getattr(self.shop.engine, name)(task_id, **options)
                self.shop.db.session.commit()
            except (TaskNotFound, TaskStateError) as error:
                refused = error
        assert (refused is None) == allowed, f"{name} of {self.model.get(task_id)}: {refused}"
        assert refused is None or isinstance(refused, TaskNotFound) == (task_id not in self.model)
        return allowed

    # --- nodes ----------------------------------------------------------------------------------------------------------

    @rule()
    @precondition(lambda self: len(self.nodes) < 3)
    def join(self) -> None:
        """A node starts; each start has a name of its own."""
        self.born += 1
        name = f"node {self.born}"
        row = {"id": name, "label": name, "host": "h", "pid": 1, "version": "1", "concurrency": 8, "types": list(TYPES), "limits": {}}
        with self.shop.outside.begin() as connection:
            nodes.register(connection, self.shop.dialect.tables, row)
        self.nodes.append(name)

    @rule(
        target=claims, place=st.integers(0, 2), rooms=st.fixed_dictionaries(dict.fromkeys(TYPES, st.integers(1, 3))), most=st.integers(1, 4)
    )
    def claim(self, place: int, rooms: dict[str, int], most: int) -> Any:
        """Take what is due by priority, time and id, as many of each type as there is room for."""
        node = self.nodes[place % len(self.nodes)]
        expected: list[int] = []
        room = dict(rooms)
        for task_id in self._due_in_order():
            if len(expected) < most and room[self.model[task_id].type] > 0:
                room[self.model[task_id].type] -= 1
                expected.append(task_id)
        with self.shop.outside.begin() as connection:
            taken = self.shop.dialect.claim(connection, node, rooms, most)
        assert [task.id for task in taken] == expected
        for task in taken:
            row = self.model[task.id]
            row.status, row.node = "RUNNING", node
            row.attempts += 1
            row.claims += 1
            assert (task.attempts, task.claims) == (row.attempts, row.claims)
        return multiple(*taken)

    def _due_in_order(self) -> list[int]:
        due = [task for task in self.shop.tasks() if self.model[task.id].status == "PENDING" and self.model[task.id].due]
        return [task.id for task in sorted(due, key=lambda task: (-task.priority, task.available_at, task.id))]

    @rule(place=st.integers(0, 2))
    @precondition(lambda self: len(self.nodes) > 1)
    def die(self, place: int) -> None:
        """A node is given up: what it ran has failed, and it can claim no more."""
        node = self.nodes.pop(place % len(self.nodes))
        worker = self.worker
        with closing(worker.database.line()) as line:
            assert take_back(worker.database, line, worker.completer, node, "its node died", None)
        for row in self.model.values():
            if row.status == "RUNNING" and row.node == node:
                self._failed(row)
        with self.shop.outside.begin() as connection:
            assert self.shop.dialect.claim(connection, node, dict.fromkeys(TYPES, 3), 3) == []

    # --- ends -----------------------------------------------------------------------------------------------------------

    @rule(
        task=consumes(claims),
        ending=st.sampled_from(
            [Returned(), Raised(ERROR), Raised(ERROR, after=LATER), Raised(ERROR, after=0.0), TimedOut(1.0), Rejected(ERROR), Snoozed(0.0)]
        )
        | st.sampled_from([Snoozed(LATER), Interrupted()]),
    )
    def end(self, task: Claimed, ending: Ending) -> None:
        """An attempt ends in each way there is; the end of one that has lost its task changes nothing."""
        row = self.model.get(task.id)
        holds = row is not None and row.status == "RUNNING" and row.claims == task.claims
        before = self.shop.tasks()
        with self.shop.outside.begin() as connection:
            outcome = self.worker.completer.settle(connection, Ended(task, ending, 0.0), row.node if row else None)
        if not holds:
            assert outcome is None or (row is not None and row.status == outcome.status.value)
            assert self.shop.tasks() == before
            return
        assert row is not None
        self._ended(row, ending)

    @rule(finished=st.lists(consumes(claims), min_size=1, max_size=4))
    def complete_many(self, finished: list[Claimed]) -> None:
        """Grouped completions take those that still hold their task and carry no cancel request."""
        expected = set()
        for task in finished:
            row = self.model.get(task.id)
            if row is not None and row.status == "RUNNING" and row.claims == task.claims and not row.cancel:
                expected.add(task.id)
        with self.shop.outside.begin() as connection:
            assert self.shop.dialect.complete_many(connection, [(task.id, task.claims, None) for task in finished]) == expected
        for task_id in expected:
            self.model[task_id].status = "SUCCEEDED"

    def _ended(self, row: Row, ending: Ending) -> None:
        match ending:
            case _ if row.cancel:
                row.status = "CANCELLED"
            case Returned():
                row.status = "SUCCEEDED"
            case Rejected():
                row.status = "FAILED"
            case Snoozed(after):
                row.status, row.due = "PENDING", after == 0
                row.attempts -= 1
            case Interrupted():
                row.status = "PENDING"
                row.attempts -= 1
            case Raised(after=after):
                self._failed(row, due=after == 0)
            case _:
                self._failed(row)

    def _failed(self, row: Row, due: bool = False) -> None:
        if row.cancel:
            row.status = "CANCELLED"
        elif row.attempts >= row.limit:
            row.status = "DEAD"
        else:
            row.status, row.due = "PENDING", due

    # --- time -----------------------------------------------------------------------------------------------------------

    @rule()
    def time_passes(self) -> None:
        """Everything that waits is due."""
        with self.shop.outside.begin() as connection:
            task = self.shop.dialect.tables.task
            sooner = sa.select(sa.func.min(task.c.created_at)).scalar_subquery()
            waits = sa.and_(task.c.status == "PENDING", task.c.id.in_([i for i, row in self.model.items() if not row.due]))
            connection.execute(sa.update(task).where(waits).values(available_at=sooner))
        for row in self.model.values():
            row.due = row.due or row.status == "PENDING"

    @rule(status=st.sampled_from(["SUCCEEDED", "CANCELLED", "DEAD", "FAILED"]), archive=st.booleans(), most=st.integers(1, 3))
    def prune(self, status: str, archive: bool, most: int) -> None:
        """Only what has ended so, no more than asked for, the oldest first."""
        ended = [task for task in self.shop.tasks() if task.status == status]
        expected = [task.id for task in sorted(ended, key=lambda task: (task.finished_at, task.id))][:most]
        with self.shop.outside.begin() as connection:
            batch = Batch(status=TaskStatus(status), kept_for=0.0, archive=archive, most=most)
            assert self.shop.dialect.prune(connection, batch).count == len(expected)
        for task_id in expected:
            del self.model[task_id]

    # --- what always holds ----------------------------------------------------------------------------------------------

    @invariant()
    def the_rows_are_those_of_the_model(self) -> None:
        """Each committed task is there, with its state; nothing else is."""
        tasks = {task.id: task for task in self.shop.tasks()}
        seen = {
            i: (t.status.value, t.attempts, t.claims, t.max_attempts, t.idempotency_key, t.cancel_requested_at is not None)
            for i, t in tasks.items()
        }
        assert seen == {i: (r.status, r.attempts, r.claims, r.max_attempts, r.key, r.cancel) for i, r in self.model.items()}
        for task in tasks.values():
            assert (task.finished_at is None) == (task.status.value in LIVE), task


@pytest.mark.parametrize("policy", [RetryPolicy(max_attempts=MAX_ATTEMPTS, base_backoff=LATER, max_backoff=LATER, jitter=0)])
def test_r12_random_histories_are_those_of_the_model(shop: Shop, policy: RetryPolicy) -> None:
    """Enqueue, claim, end, cancel, retry, delete, expire and prune in any order, on several nodes: the rows are the model's."""
    for task_type in TYPES:
        shop.engine.task(task_type, retry=policy)(lambda payload: None)
    worker = shop.worker()
    worker.watchdog.start()

    class OnThisDatabase(Histories):
        pass

    OnThisDatabase.shop, OnThisDatabase.worker = shop, worker
    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=EXAMPLES == DEFAULT_EXAMPLES,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Cancel, retry and delete by hand, at random, against workers that claim and finish the same tasks.

``TASKENGINE_TEST_RACES`` sets how many verbs there are, ``TASKENGINE_TEST_SEED`` repeats a choice of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from flask_taskengine import Reject, RetryPolicy, TaskContext, TaskStatus
from flask_taskengine.domain.errors import TaskNotFound, TaskStateError
from flask_taskengine.domain.states import ENDED, TRANSITIONS
from tests.support.shop import Effect, Shop
from tests.support.shop_fixtures import RunWorker
from tests.support.waiting import wait_until

VERBS = int(os.environ.get("TASKENGINE_TEST_RACES", "300"))
SEED = int(os.environ.get("TASKENGINE_TEST_SEED", random.SystemRandom().randrange(10**6)))
HANDS = 3
UNDERWAY = 40

NOTE = "INSERT INTO step VALUES (OLD.id, OLD.type, OLD.status, NEW.status, OLD.claims, NEW.claims)"
TRIGGERS = {
    "postgresql": [
        f"CREATE FUNCTION note_step() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {NOTE}; RETURN NULL; END $$",
        "CREATE TRIGGER note_step AFTER UPDATE ON taskengine_task FOR EACH ROW EXECUTE FUNCTION note_step()",
    ],
    "sqlite": [f"CREATE TRIGGER note_step AFTER UPDATE ON taskengine_task BEGIN {NOTE}; END"],
}


def note_steps(shop: Shop) -> None:
    """Let the database itself write down each change of a task."""
    shop.sql("CREATE TABLE step (id BIGINT, type TEXT, old_status TEXT, new_status TEXT, old_claims BIGINT, new_claims BIGINT)")
    with shop.outside.begin() as connection:
        for statement in TRIGGERS[connection.dialect.name]:
            connection.exec_driver_sql(statement)


def meddle(shop: Shop, seed: int, verbs: int, said: Counter[str]) -> None:
    """Enqueue, and do something to a task that was enqueued lately, again and again."""
    choose = random.Random(seed)
    mine: list[int] = []
    for _ in range(verbs):
        verb = choose.choice(["cancel", "cancel", "retry", "delete"])
        with shop.app.app_context():
            mine += [made.id for made in shop.engine.enqueue_many({"type": choose.choice(["write", "fail", "reject"])} for _ in range(2))]
            shop.db.session.commit()
            try:
                getattr(shop.engine, verb)(choose.choice(mine[-UNDERWAY // HANDS :]))
            except (TaskNotFound, TaskStateError) as error:
                shop.db.session.rollback()
                said[f"{verb}: {type(error).__name__}"] += 1
            else:
                shop.db.session.commit()
                said[verb] += 1


def test_r13_verbs_race_against_claims_and_ends(shop: Shop, run_worker: RunWorker) -> None:
    """Whoever comes first, each step is one of the table, no attempt runs twice, and where a task succeeded there is its effect."""
    attempts: Counter[tuple[int, int]] = Counter()
    policy = RetryPolicy(max_attempts=2, base_backoff=0.001, max_backoff=0.001)

    @shop.engine.task("write", retry=policy)
    def write(payload: None, context: TaskContext) -> None:
        attempts[context.task_id, context.token] += 1
        shop.db.session.add(Effect(name=f"{context.task_id} {context.token}"))

    @shop.engine.task("fail", retry=policy)
    def fail(payload: None, context: TaskContext) -> None:
        attempts[context.task_id, context.token] += 1
        shop.db.session.add(Effect(name=f"{context.task_id} {context.token}"))
        shop.db.session.flush()
        raise ValueError("no")

    @shop.engine.task("reject")
    def reject(payload: None, context: TaskContext) -> None:
        attempts[context.task_id, context.token] += 1
        raise Reject("never")

    note_steps(shop)
    workers = [run_worker(shop, concurrency=4) for _ in range(2)]
    said: Counter[str] = Counter()
    with ThreadPoolExecutor(HANDS) as hands:
        for done in [hands.submit(meddle, shop, SEED + hand, VERBS // HANDS, said) for hand in range(HANDS)]:
            done.result()
    live = "SELECT id FROM taskengine_task WHERE finished_at IS NULL"
    wait_until(lambda: not shop.sql(live), 60, f"all tasks to end; seed {SEED}")
    for worker in workers:
        assert worker.stop()

    steps = shop.sql("SELECT id, type, old_status, new_status, old_claims, new_claims FROM step")
    wrong = [(old, new) for _, _, old, new, _, _ in steps if old != new and TaskStatus(new) not in TRANSITIONS[TaskStatus(old)]]
    assert wrong == [], SEED
    assert all(new >= old for *_, old, new in steps)
    assert [attempt for attempt, times in attempts.items() if times > 1] == []
    assert {task.status for task in shop.tasks()} <= ENDED
    effects = {(int(task_id), int(token)) for task_id, token in map(str.split, shop.effects())}
    ended = {(i, claims): new for i, task_type, old, new, claims, _ in steps if (task_type, old) == ("write", "RUNNING") and new != old}
    assert {attempt for attempt, status in ended.items() if status == "SUCCEEDED"} <= effects
    # One that was asked to end and returned keeps its work.
    assert {ended.get(attempt) for attempt in effects} <= {"SUCCEEDED", "CANCELLED"}
    assert {"cancel", "retry", "delete", "retry: TaskStateError"} <= said.keys(), said

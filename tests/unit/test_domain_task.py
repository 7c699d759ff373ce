"""What a task shows of itself."""

from __future__ import annotations

import copy
from datetime import UTC, datetime

from flask_taskengine.domain.states import TaskStatus
from flask_taskengine.domain.task import Task
from flask_taskengine.domain.values import shown


def test_a_task_shows_no_payload() -> None:
    """A task can be hashed although its payload can not, and its ``repr`` tells neither payload, result nor error."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    task = Task(
        id=7,
        type="email",
        payload={"secret": [1]},
        status=TaskStatus.PENDING,
        priority=0,
        attempts=0,
        max_attempts=None,
        available_at=now,
        created_at=now,
        updated_at=now,
        claimed_at=None,
        claimed_by=None,
        claims=0,
        cancel_requested_at=None,
        finished_at=None,
        idempotency_key=None,
        last_error="the secret is out",
        trace_context={"a": "b"},
        result=["secret"],
        progress=None,
    )
    assert hash(task) == hash(copy.deepcopy(task))
    assert task == copy.deepcopy(task)
    assert "secret" not in repr(task)
    assert "id=7, type='email'" in repr(task)


def test_a_value_is_shown_short_whatever_it_is() -> None:
    """An error message survives values that are long, or whose ``repr`` raises."""

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("a") == "'a'"
    assert len(shown("a" * 1000)) < 70
    assert shown(Broken()) == "a value of type Broken"

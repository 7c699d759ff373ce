"""How long tasks that have ended are kept."""

from __future__ import annotations

from typing import Any

import pytest

from flask_taskengine.domain.retention import Retention
from flask_taskengine.domain.states import ENDED, LIVE, TaskStatus


def test_retention_knows_every_status_that_has_ended() -> None:
    """Each ended status is kept for its own time; one that has not ended is never asked for."""
    retention = Retention(succeeded=1, cancelled=2, failed=3, dead=None)
    assert {status: retention.kept_for(status) for status in ENDED} == {
        TaskStatus.SUCCEEDED: 1,
        TaskStatus.CANCELLED: 2,
        TaskStatus.FAILED: 3,
        TaskStatus.DEAD: None,
    }
    for status in LIVE:
        with pytest.raises(ValueError, match=f"a task that is {status} has not ended"):
            retention.kept_for(status)


def test_retention_tells_zero_from_none() -> None:
    """``succeeded=0`` deletes at completion, None keeps for ever."""
    assert Retention(succeeded=0).deletes_at_completion
    assert not Retention(succeeded=None).deletes_at_completion
    assert not Retention(succeeded=0.001).deletes_at_completion


@pytest.mark.parametrize(
    ("argument", "value"),
    [("succeeded", -1), ("dead", "7d"), ("failed", float("inf")), ("interval", 0), ("interval", None), ("strategy", "burn")],
)
def test_wrong_retention_is_refused(argument: str, value: Any) -> None:
    """Retention that was made in code is checked too."""
    with pytest.raises(ValueError, match="give "):
        Retention(**{argument: value})

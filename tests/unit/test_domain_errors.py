"""The errors of the engine, and the exceptions with which a handler ends its attempt."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from flask_taskengine.domain import errors

ERRORS: list[BaseException] = [
    errors.ConfigError(["one", "two"]),
    errors.DuplicateTypeError("twice"),
    errors.PayloadError("email", {"$.to": "is missing"}),
    errors.TaskNotFound(7),
    errors.TaskStateError(7, "RUNNING", "deleted", "PENDING"),
    errors.KeyBusyError("order-7", "held by another transaction"),
    errors.LeaseLostError(7),
    errors.Reject("never"),
    errors.Retry("5m", "the provider is down"),
    errors.Snooze(after=90),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_a_process_border(error: BaseException) -> None:
    """Every error can be copied and pickled, with its fields."""
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_what_a_handler_raises_is_told_apart() -> None:
    """The engine's errors have one root; interrupts pass ``except Exception``; a handler's words are no errors of the engine."""
    assert all(isinstance(error, errors.TaskEngineError) for error in ERRORS[:7])
    assert not any(isinstance(error, errors.TaskEngineError) for error in ERRORS[7:])
    for interrupt in (errors.TaskTimedOut, errors.TaskCancelled, errors.TaskLeaseLost, errors.WorkerStopping):
        assert issubclass(interrupt, errors.TaskInterrupt)
        assert not issubclass(interrupt, Exception)


@pytest.mark.parametrize("make", [errors.Retry, errors.Snooze])
def test_a_delay_of_a_handler_takes_the_documented_forms(make: Any) -> None:
    """``Retry`` and ``Snooze`` take a duration, and refuse what is none where it is written."""
    assert make(after="2m").after == 120
    with pytest.raises(ValueError, match="out of range"):
        make(after=-1)

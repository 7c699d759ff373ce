"""The settings: which of several places wins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_taskengine.domain.limits import Limits
from flask_taskengine.domain.retry import RetryPolicy
from flask_taskengine.settings import Settings

POLICY = st.fixed_dictionaries(
    {}, optional={"max_attempts": st.none() | st.integers(1, 9), "base_backoff": st.integers(0, 9), "jitter": st.sampled_from([0, 0.5, 1])}
)
LIMIT = st.none() | st.integers(1, 9)
LIMITS = st.fixed_dictionaries({}, optional={"per_node": LIMIT, "cluster_wide": LIMIT})


def read(**settings: Any) -> Settings:
    """Read settings that are given without their prefix."""
    return Settings.from_config({f"TASKENGINE_{key}": value for key, value in settings.items()})


@given(of_type=POLICY, processor=POLICY, default=POLICY)
def test_the_retry_policy_is_merged_key_by_key(of_type: dict[str, Any], processor: dict[str, Any], default: dict[str, Any]) -> None:
    """R21: RETRY of the type wins over the processor's policy, which wins over DEFAULT_RETRY, for each key by itself."""
    settings = read(RETRY={"a": of_type}, DEFAULT_RETRY=default)
    assert settings.retry_policy("a", RetryPolicy(**processor)) == RetryPolicy(**(default | processor | of_type))
    assert settings.retry_policy("a", None) == RetryPolicy(**(default | of_type))
    assert settings.retry_policy("b", RetryPolicy(**processor)) == RetryPolicy(**(default | processor))
    assert settings.retry_policy("b", None) == RetryPolicy(**default)


@given(of_type=LIMITS, processor=LIMITS)
def test_limits_are_merged_key_by_key(of_type: dict[str, Any], processor: dict[str, Any]) -> None:
    """R15: PROCESSOR_LIMITS of the type wins over the processor's limits, for each key by itself; None lifts a limit."""
    settings = read(PROCESSOR_LIMITS={"a": of_type})
    assert settings.limits("a", Limits(**processor)) == Limits(**(processor | of_type))
    assert settings.limits("a", None) == Limits(**of_type)
    assert settings.limits("b", Limits(**processor)) == Limits(**processor)
    assert settings.limits("b", None) == Limits()


@pytest.mark.parametrize(
    ("task_type", "processor", "expected"),
    [("a", ..., 5), ("a", 7, 5), ("a", None, 5), ("b", 7, None), ("c", ..., 300), ("c", 7, 7), ("c", None, None), ("c", 0, 0)],
)
def test_the_timeout_of_the_type_wins(task_type: str, processor: Any, expected: float | None) -> None:
    """R22: TIMEOUT of the type wins over the processor's, which wins over DEFAULT_TIMEOUT; None is no timeout, not no answer."""
    assert read(TIMEOUT={"a": 5, "b": None}).timeout_for(task_type, processor) == expected

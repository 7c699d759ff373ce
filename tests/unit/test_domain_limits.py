"""How many tasks of a type may run at once."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_taskengine.domain.limits import Limits

LIMIT = st.none() | st.integers(1, 2**31 - 1)
SOME_LIMITS = st.fixed_dictionaries({}, optional={"per_node": LIMIT, "cluster_wide": LIMIT})


@given(one=SOME_LIMITS, other=SOME_LIMITS)
def test_limits_merge_key_by_key(one: dict[str, int | None], other: dict[str, int | None]) -> None:
    """A limit that was given wins, also a None, which lifts the other's; one that was not leaves the other's in force."""
    merged = Limits(**one).over(Limits(**other))
    expected = other | one
    assert (merged.per_node, merged.cluster_wide) == (expected.get("per_node"), expected.get("cluster_wide"))
    assert merged.given == set(expected)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", 2**31, pytest.param(10**5000, id="5000 digits")])
@pytest.mark.parametrize("name", ["per_node", "cluster_wide"])
def test_a_wrong_limit_is_named_with_its_remedy(name: str, value: Any) -> None:
    """0 and negative limits are not None: they are refused, and the message says how to lift a limit and how to stop a type."""
    with pytest.raises(
        ValueError, match=f"^{name}: .* give a whole number from 1 to 2147483647, or None for no limit; to stop a type, pause it"
    ):
        Limits(**{name: value})


def test_limits_are_values() -> None:
    """Limits can be compared, hashed, shown, copied, pickled and not changed."""
    limits = Limits(2)
    assert limits == Limits(per_node=2, cluster_wide=None) == pickle.loads(pickle.dumps(limits))
    assert hash(limits) == hash(Limits(per_node=2))
    assert repr(limits) == "Limits(per_node=2, cluster_wide=None)"
    assert copy.copy(limits).given == {"per_node"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        limits.per_node = 3  # type: ignore[misc]

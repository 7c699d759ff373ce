"""How many tasks of one type may run at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import EllipsisType

from .values import whole


@dataclass(frozen=True, slots=True, init=False)
class Limits:
    """How many tasks of a type may run at once; ``None`` is no limit, and of two limits the stricter holds.

    Only the arguments that were given count when limits of several places are merged: a ``None`` that was
    given lifts the limit that it is put over.

    Raises:
        ValueError: a limit is not a whole number from 1. To stop a type, pause it.
    """

    per_node: int | None
    """In one worker process."""
    cluster_wide: int | None
    """On all nodes together."""
    given: frozenset[str] = field(init=False, repr=False, compare=False)

    def __init__(self, per_node: int | EllipsisType | None = ..., cluster_wide: int | EllipsisType | None = ...) -> None:
        said = {"per_node": per_node, "cluster_wide": cluster_wide}
        for name, value in said.items():
            object.__setattr__(self, name, _checked(name, None if value is ... else value))
        object.__setattr__(self, "given", frozenset(name for name, value in said.items() if value is not ...))

    @property
    def in_force(self) -> dict[str, int]:
        """The limits that there are, by name."""
        named = {"per_node": self.per_node, "cluster_wide": self.cluster_wide}
        return {name: limit for name, limit in named.items() if limit is not None}

    def over(self, base: Limits) -> Limits:
        """Return ``base`` with every limit that was given here put over it."""
        return Limits(**{name: getattr(place, name) for place in (base, self) for name in place.given})


def _checked(name: str, value: object) -> int | None:
    try:
        return None if value is None else whole(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}, or None for no limit; to stop a type, pause it") from None

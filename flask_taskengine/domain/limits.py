"""How many tasks of one type may run at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How many tasks of a type may run at once; ``None`` sets no limit, and of two limits the stricter holds.

    Raises:
        ValueError: a limit is not a whole number from 1. To stop a type, pause it.
    """

    per_node: int | None = None
    """In one worker process."""
    cluster_wide: int | None = None
    """On all nodes together."""

    def __post_init__(self) -> None:
        for name in ("per_node", "cluster_wide"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is {value!r}: give a whole number from 1, or None for no limit; to stop a type, pause it")

    def over(self, base: Limits) -> Limits:
        """Return ``base`` with every limit that is set here put over it."""
        return Limits(
            per_node=base.per_node if self.per_node is None else self.per_node,
            cluster_wide=base.cluster_wide if self.cluster_wide is None else self.cluster_wide,
        )

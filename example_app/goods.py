"""What the shop sells, at which price."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Good:
    """One kind of goods; the price is in cents."""

    code: str
    name: str
    cents: int


GOODS = (
    Good("tea", "Green tea, 100 g", 690),
    Good("cup", "Stoneware cup", 1450),
    Good("kettle", "Enamel kettle", 3900),
    Good("biscuits", "Oat biscuits", 380),
)

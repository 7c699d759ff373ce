"""What the shop writes down. The tables of the tasks are not here: ``flask taskengine migrate`` makes them."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .extensions import Model


class Order(Model):
    """What a customer has ordered."""

    __tablename__ = "shop_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    reference: Mapped[str] = mapped_column(sa.String(40), unique=True)
    """Made with the form, so that a form that is sent twice is one order."""
    customer: Mapped[str] = mapped_column(sa.String(80))
    email: Mapped[str] = mapped_column(sa.String(120))
    placed_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), default=lambda: datetime.now(UTC))
    lines: Mapped[list[OrderLine]] = relationship(order_by="OrderLine.id", lazy="selectin")
    tasks: Mapped[list[OrderTask]] = relationship(order_by="OrderTask.task_id", lazy="selectin")
    payments: Mapped[list[Payment]] = relationship(order_by="Payment.id", lazy="selectin")

    @property
    def total(self) -> int:
        """The price in cents."""
        return sum(line.quantity * line.cents for line in self.lines)


class OrderLine(Model):
    """One kind of goods in an order, at the price of that day."""

    __tablename__ = "shop_order_line"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("shop_order.id"), index=True)
    name: Mapped[str] = mapped_column(sa.String(80))
    quantity: Mapped[int]
    cents: Mapped[int]
    """The price of one piece."""


class OrderTask(Model):
    """Which tasks belong to an order; their ids are known as soon as they are enqueued."""

    __tablename__ = "shop_order_task"

    task_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("shop_order.id"), index=True)
    label: Mapped[str] = mapped_column(sa.String(40))


class Payment(Model):
    """Money that was received.

    No unique constraint keeps an order from being paid twice, on purpose: that there is one row for each order is what the
    task engine promises, and what the demo counts.
    """

    __tablename__ = "shop_payment"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("shop_order.id"), index=True)
    cents: Mapped[int]
    receipt: Mapped[str] = mapped_column(sa.String(40))

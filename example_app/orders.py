"""Placing an order: the order and its tasks, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from flask_taskengine import Task

from .extensions import db, engine
from .goods import GOODS
from .models import Order, OrderLine, OrderTask
from .tasks import Charge, Confirmation


class OutOfStock(Exception):
    """The goods are gone. Found out late: the order is written and its tasks are enqueued, but nothing is committed."""

    def __init__(self, order: Order) -> None:
        self.reference = order.reference
        self.tasks = [(task.label, task.task_id) for task in order.tasks]
        super().__init__(f"order {order.reference}: sold out")


def place_order(reference: str, customer: str, email: str, quantities: Mapping[str, int]) -> Order:
    """Write an order and enqueue its tasks, in the caller's transaction. Does not commit.

    Either the caller commits, and the order and its tasks exist, or it does not, and none of them ever did.
    """
    lines = [OrderLine(name=good.name, quantity=quantities[good.code], cents=good.cents) for good in GOODS if quantities.get(good.code)]
    order = Order(reference=reference, customer=customer, email=email, lines=lines)
    db.session.add(order)
    db.session.flush()  # the tasks need order.id
    # The mail first: the higher priority runs first.
    mail = engine.enqueue("mail.confirmation", Confirmation(order.id, email), priority=10, idempotency_key=f"{reference}:mail")
    payment = engine.enqueue("payment.charge", Charge(order.id, order.total), idempotency_key=f"{reference}:payment")
    report = engine.enqueue_after("order.report", {"order_id": order.id}, "2s", priority=-10, idempotency_key=f"{reference}:report")
    labels = {"Confirmation mail": mail, "Payment": payment, "Report": report}
    order.tasks = [OrderTask(label=label, task_id=enqueued.id) for label, enqueued in labels.items()]
    return order


def find_order(reference: str) -> Order | None:
    """Read an order."""
    return db.session.scalars(sa.select(Order).filter_by(reference=reference)).one_or_none()


def recent_orders(most: int = 12) -> Sequence[Order]:
    """Read the newest orders, newest first."""
    return db.session.scalars(sa.select(Order).order_by(Order.id.desc()).limit(most)).all()


def tasks_of(order: Order) -> list[tuple[str, Task | None]]:
    """Read an order's tasks, each with its label; None stands for one that retention has removed."""
    return [(task.label, engine.get(task.task_id)) for task in order.tasks]

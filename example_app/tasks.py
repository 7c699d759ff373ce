"""What happens after an order was placed. Each handler runs in a worker, in its own app context and transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from flask import current_app

from flask_taskengine import Reject, RetryPolicy, Snooze, TaskContext, TaskProcessor

from .extensions import db, engine
from .models import Order, Payment
from .outbox import send_mail
from .provider import charge


@dataclass(frozen=True)
class Confirmation:
    """The payload of a confirmation mail."""

    order_id: int
    to: str


@dataclass(frozen=True)
class Charge:
    """The payload of a payment."""

    order_id: int
    cents: int


@engine.task("mail.confirmation", timeout=30)
def send_confirmation(payload: Confirmation, context: TaskContext) -> None:
    """Tell the customer that the order was placed.

    A mail can not be rolled back. Should the worker die right after it was sent, it is sent again: at least once.
    """
    order = order_of(payload.order_id)
    lines = [f"{line.quantity} x {line.name}" for line in order.lines]
    text = "\n".join([f"Hello {order.customer},", "", "thank you for your order:", *lines, "", f"Total: {order.total / 100:.2f} EUR"])
    send_mail(current_app.config["SHOP_FOLDER"], order.reference, to=payload.to, text=text, token=context.token)


@engine.task("payment.charge", retry=RetryPolicy(max_attempts=8, base_backoff=1, multiplier=1.5, max_backoff=10))
def charge_payment(payload: Charge, context: TaskContext) -> None:
    """Collect the money and book it.

    The provider is another company's: it fails now and then, which is why this task is retried. It is given the task's
    idempotency key, so that an attempt which follows one that was charged but not committed charges nothing more. The
    booking is ours: it commits together with the end of the task, so there is exactly one.
    """
    receipt = charge(current_app.config["SHOP_FOLDER"], str(context.idempotency_key), payload.cents)
    db.session.add(Payment(order_id=payload.order_id, cents=payload.cents, receipt=receipt))


class OrderReport(TaskProcessor[dict[str, int]]):
    """Sums an order up, once it is paid. What it returns is kept as the task's result."""

    type = "order.report"
    store_result = True
    patience = timedelta(days=1)

    def process(self, payload: dict[str, int], context: TaskContext) -> dict[str, object]:
        """Return the report; as long as the order is not paid, ask again later."""
        order = order_of(payload["order_id"])
        if not order.payments:
            if datetime.now(UTC) - context.enqueued_at > self.patience:
                raise Reject("the order was not paid")
            raise Snooze(after="1s")
        pieces = sum(line.quantity for line in order.lines)
        return {"pieces": pieces, "cents": order.total, "receipts": [payment.receipt for payment in order.payments]}


engine.register(OrderReport())


def order_of(order_id: int) -> Order:
    """Read the order that a task is about.

    Raises:
        Reject: it is gone, and no further attempt will find it.
    """
    order = db.session.get(Order, order_id)
    if order is None:
        raise Reject(f"there is no order {order_id}")
    return order

"""The pages."""

from __future__ import annotations

import secrets
from typing import Any

from flask import Blueprint, abort, current_app, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from .extensions import db, engine
from .goods import GOODS
from .models import Order
from .orders import OutOfStock, find_order, place_order, recent_orders, tasks_of
from .outbox import mails_of

shop = Blueprint("shop", __name__)
MOST_PIECES = 99


@shop.get("/")
def index() -> str:
    """Show the form and the orders."""
    return render_template("index.html", goods=GOODS, reference=new_reference(), orders=recent_orders())


@shop.get("/orders")
def orders() -> str:
    """Show the orders alone: what the page asks for every second."""
    return render_template("_orders.html", orders=recent_orders())


@shop.get("/orders/<reference>")
def order(reference: str) -> str:
    """Show one order, its tasks and its mails."""
    found = find_order(reference) or abort(404)
    return render_template("order.html", order=found, mails=mails_of(current_app.config["SHOP_FOLDER"], reference))


@shop.post("/orders")
def place() -> Response:
    """Place an order: one commit for the order and its tasks."""
    form = read_form()
    if find_order(form["reference"]) is None:
        place_order(**form)
        db.session.commit()
    return redirect(url_for("shop.index"), 303)


@shop.post("/orders/failing")
def place_failing() -> Response:
    """Do the same, and fail after the tasks were enqueued."""
    raise OutOfStock(place_order(**read_form()))


@shop.errorhandler(OutOfStock)
def sold_out(error: OutOfStock) -> tuple[str, int]:
    """Roll back, then look for what the failed order has left behind: nothing."""
    db.session.rollback()
    looked_for: list[tuple[str, object]] = [(f"Order {error.reference}", find_order(error.reference))]
    looked_for += [(f"Task {task_id}: {label}", engine.get(task_id)) for label, task_id in error.tasks]
    return render_template("failed.html", error=error, looked_for=looked_for), 409


@shop.app_template_filter()
def euros(cents: int) -> str:
    """Write an amount."""
    return f"€ {cents / 100:.2f}"


@shop.app_template_global()
def tasks(order: Order) -> Any:
    """Read an order's tasks for a template."""
    return tasks_of(order)


def new_reference() -> str:
    """Make the reference of the order that a form will place."""
    return secrets.token_hex(4).upper()


def read_form() -> dict[str, Any]:
    """Read what the customer has filled in, or answer 400."""
    form = request.form
    quantities = {good.code: form.get(good.code, 0, type=int) for good in GOODS}
    if not any(quantities.values()) or not all(0 <= quantity <= MOST_PIECES for quantity in quantities.values()):
        abort(400, f"Order at least one piece, and at most {MOST_PIECES} of each kind.")
    texts = {name: form.get(name, "").strip() for name in ("reference", "customer", "email")}
    if not all(0 < len(text) <= 40 and text.isprintable() for text in texts.values()) or not texts["reference"].isalnum():
        abort(400, "Fill in your name and your address, with at most 40 characters each.")
    return {**texts, "quantities": quantities}

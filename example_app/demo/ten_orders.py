"""Places ten orders, three of which fail after their tasks were enqueued, and counts what happened."""

from __future__ import annotations

import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
import sqlalchemy as sa
from flask import Flask

from flask_taskengine import Task

from ..extensions import db
from ..models import Payment
from ..orders import find_order, tasks_of
from ..outbox import mails_of

FAILING = frozenset({3, 6, 9})
ENDED = frozenset({"SUCCEEDED", "FAILED", "DEAD", "CANCELLED"})
TASKS_PER_ORDER = 3
CONFLICT = 409


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is of one order."""

    reference: str
    fails: bool
    exists: bool
    tasks: Sequence[tuple[str, Task | None]]
    rows: int
    """Tasks in the table whose idempotency key is the order's."""
    mails: int
    payments: int

    @property
    def as_it_should_be(self) -> bool:
        """Nothing at all of an order that failed; of the others everything exactly once."""
        if self.fails:
            return not (self.exists or self.tasks or self.rows or self.mails or self.payments)
        succeeded = [task for _, task in self.tasks if task is not None and task.status == "SUCCEEDED"]
        return len(succeeded) == self.rows == TASKS_PER_ORDER and self.mails == self.payments == 1

    @property
    def ended(self) -> bool:
        """Whether none of its tasks goes on."""
        return all(task is None or task.status in ENDED for _, task in self.tasks)


def place_ten(address: str) -> dict[str, bool]:
    """Place ten orders through the shop's pages; return their references, and for each whether it was one that fails."""
    placed = {}
    for number in range(1, 11):
        reference, fails = secrets.token_hex(4).upper(), number in FAILING
        form = {"reference": reference, "customer": f"Customer {number}", "email": f"customer{number}@example.org", "tea": number}
        status = _post(f"{address}/orders{'/failing' if fails else ''}", form)
        if status != (CONFLICT if fails else 200):
            raise RuntimeError(f"the shop answered order {number} with {status}")
        placed[reference] = fails
    return placed


def watch(app: Flask, placed: dict[str, bool], timeout: float, wait: Callable[[float], None]) -> list[Seen]:
    """Look until every task has ended, at most for ``timeout`` seconds; return what there is then.

    Args:
        wait: waits for some seconds, and raises where that has become pointless.
    """
    end = time.monotonic() + timeout
    while True:
        with app.app_context():
            seen = [_look(app, reference, fails) for reference, fails in placed.items()]
        if all(one.ended for one in seen) or time.monotonic() > end:
            return seen
        wait(0.2)


def report(seen: Sequence[Seen]) -> bool:
    """Print what happened; return whether it is what was promised."""
    click.echo(f"{'order':10}{'placed':12}{'task':20}{'status':12}{'attempts':>8}  {'mails':>5}  {'payments':>8}")
    for one in seen:
        first = f"{one.reference:10}{'rolled back' if one.fails else 'committed':12}"
        counted = f"  {one.mails:5}  {one.payments:8}"
        rows = [f"{label:20}{task.status if task else 'gone':12}{task.attempts if task else '':>8}" for label, task in one.tasks]
        rows = rows or [f"{'none' if not one.rows else f'{one.rows} without an order':40}"]
        click.echo(first + rows[0] + counted)
        for row in rows[1:]:
            click.echo(" " * len(first) + row)
    committed, rolled_back = [one for one in seen if not one.fails], [one for one in seen if one.fails]
    right = [one for one in committed if one.as_it_should_be]
    clean = [one for one in rolled_back if one.as_it_should_be]
    click.echo(f"\n{len(right)} of {len(committed)} committed orders: every task ran, one mail and one payment each.")
    click.echo(f"{len(clean)} of {len(rolled_back)} orders that were rolled back: neither the order nor a task exists.")
    return len(right) == len(committed) and len(clean) == len(rolled_back)


def _look(app: Flask, reference: str, fails: bool) -> Seen:
    order = find_order(reference)
    rows = db.session.scalar(sa.text("SELECT count(*) FROM taskengine_task WHERE idempotency_key LIKE :key"), {"key": f"{reference}:%"})
    payments = db.session.scalar(sa.select(sa.func.count()).where(Payment.order_id == order.id)) if order else 0
    return Seen(
        reference=reference,
        fails=fails,
        exists=order is not None,
        tasks=tasks_of(order) if order else [],
        rows=rows or 0,
        mails=len(mails_of(app.config["SHOP_FOLDER"], reference)),
        payments=payments or 0,
    )


def _post(url: str, form: dict[str, object]) -> int:
    request = urllib.request.Request(url, urllib.parse.urlencode(form).encode())  # noqa: S310 - the demo's own address
    # Without the proxies of the environment: the shop is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return int(error.code)

"""The health route: for load balancers and for whoever is on call."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import sqlalchemy as sa
from flask import Blueprint, Response, request

from .access import harden, may_read
from .runtime.host import Host
from .store import health, migrations, nodes
from .store.dialects.base import Dialect


def serve(host: Host) -> None:
    """Give an app the routes ``/health`` and ``/health/live``."""
    blueprint = Blueprint("taskengine_health", __name__)
    blueprint.add_url_rule("/health", view_func=lambda: _health(host), endpoint="health")
    blueprint.add_url_rule("/health/live", view_func=lambda: _answer({"status": "UP"}), endpoint="live")
    blueprint.after_request(harden)
    host.app.register_blueprint(blueprint, url_prefix=host.settings.api_url_prefix or None)


def _health(host: Host) -> Response:
    """Answer 200 UP or 503 DOWN; with details for those who may read."""
    faults, details = _look(host)
    value: dict[str, Any] = {"status": "DOWN" if faults else "UP"}
    if may_read(host, request):
        value |= details | {"faults": faults}
    return _answer(value, HTTPStatus.SERVICE_UNAVAILABLE if faults else HTTPStatus.OK)


def _look(host: Host) -> tuple[list[str], dict[str, Any]]:
    details: dict[str, Any] = {"database": "DOWN", "wakeup": host.settings.wakeup}
    try:
        with host.sql_engine().connect() as connection:
            details["database"] = "UP"
            faults = migrations.schema_faults(connection, host.names)
            details["schema"] = {"revision": migrations.current_revision(connection, host.names), "faults": faults}
            if faults:
                return faults, details
            figures = _figures(connection, host, host.dialect(connection.dialect.name))
    except sa.exc.SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).strip().splitlines()
        return [f"the database does not answer: {said[0] if said else type(error).__name__}"], details
    return _judged(host, figures), details | figures


def _figures(connection: sa.Connection, host: Host, dialect: Dialect) -> dict[str, Any]:
    found = health.health_figures(connection, dialect)
    alive = nodes.alive(connection, dialect.tables, host.settings.lease)
    now = nodes.now(connection)
    oldest = found.vitals.oldest_transaction
    return {
        "workers": len(alive),
        "last_heartbeat_age": min(((now - one["heartbeat_at"]).total_seconds() for one in alive), default=None),
        "oldest_due_age": found.oldest_due,
        "tasks": {status.value: number for status, number in found.depth.tasks.items()},
        "estimated": sorted(found.depth.estimated),
        "dead_rows": found.vitals.dead_rows,
        "oldest_transaction_age": None if oldest is None else oldest.age,
        "warnings": health.warnings(found),
    }


def _judged(host: Host, figures: dict[str, Any]) -> list[str]:
    least, longest = host.settings.health_min_workers, host.settings.health_max_due_age
    faults = []
    if figures["workers"] < least:
        faults.append(f"{figures['workers']} workers are alive, TASKENGINE_HEALTH_MIN_WORKERS wants {least}: start workers")
    if longest is not None and figures["oldest_due_age"] > longest:
        age = figures["oldest_due_age"]
        faults.append(f"a task is due for {age:.0f} s, TASKENGINE_HEALTH_MAX_DUE_AGE allows {longest:g} s: start more workers")
    return faults


def _answer(value: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(json.dumps(value), status=status, mimetype="application/json")

"""What PostgreSQL says that a statement has cost: rows and buffers, which do not depend on the machine as times do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import ClientCursor

_PARAMETER = re.compile(r"%\((\w+)\)s|%s")


@dataclass(frozen=True)
class Cost:
    """What one statement has cost."""

    statement: str
    buffers: int
    """Pages of 8 KiB that were looked at, each as often as it was."""
    rows: int
    """The most rows that a single step of the plan has produced or thrown away, over all its loops."""
    plan: str

    def __str__(self) -> str:
        return f"{self.buffers} buffers, {self.rows} rows in one step:\n{self.statement}\n{self.plan}"


def costs_of(engine: sa.Engine, action: Callable[[sa.Connection], Any], *, generic: bool = False) -> list[Cost]:
    """Run an action, and say what each of its statements costs. Everything is rolled back.

    Args:
        generic: plan without the values of the parameters, as the server does for a statement that is prepared and run often.
    """
    with engine.connect() as connection:
        seen: list[tuple[str, Any]] = []
        note = _noter(seen)
        sa.event.listen(engine, "before_cursor_execute", note)
        try:
            action(connection)
        finally:
            sa.event.remove(engine, "before_cursor_execute", note)
            connection.rollback()
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return [_cost(driver, statement, parameters, generic=generic) for statement, parameters in seen]


def _noter(seen: list[tuple[str, Any]]) -> Callable[..., None]:
    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    return note


def _cost(driver: psycopg.Connection[Any], statement: str, parameters: Any, *, generic: bool) -> Cost:
    explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)"
    with ClientCursor(driver) as cursor:
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan" if generic else "SELECT")
        cursor.execute(f"PREPARE examined AS {_numbered(statement)}")
        values = cursor.mogrify(", ".join(["%s"] * len(given)), given) if (given := _given(statement, parameters)) else ""
        cursor.execute(f"{explain} EXECUTE examined" + (f" ({values})" if values else ""))
        fetched = cursor.fetchone()
    driver.rollback()
    driver.execute("DEALLOCATE examined")
    driver.rollback()
    assert fetched is not None
    plan = fetched[0][0]["Plan"]
    nodes = list(_nodes(plan))
    rows = max(_rows(node) for node, _ in nodes)
    drawn = "\n".join("  " * depth + _drawn(node) for node, depth in nodes)
    return Cost(statement, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], rows, drawn)


def _numbered(statement: str) -> str:
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match[1] or f"position {len(names)}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PARAMETER.sub(number, statement).replace("%%", "%")


def _given(statement: str, parameters: Any) -> list[Any]:
    if not isinstance(parameters, dict):
        return list(parameters)
    return [parameters[name] for name in dict.fromkeys(match[1] for match in _PARAMETER.finditer(statement))]


def _nodes(plan: dict[str, Any], depth: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    yield plan, depth
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner, depth + 1)


def _rows(node: dict[str, Any]) -> int:
    each = node["Actual Rows"] + sum(node.get(name, 0) for name in ("Rows Removed by Filter", "Rows Removed by Index Recheck"))
    return int(each * node["Actual Loops"])


def _drawn(node: dict[str, Any]) -> str:
    where = node.get("Index Name") or node.get("Relation Name") or node.get("CTE Name") or ""
    read = node["Shared Hit Blocks"] + node["Shared Read Blocks"]
    return f"{node['Node Type']} {where}: {node['Actual Rows']} rows, {node['Actual Loops']} loops, {read} buffers"

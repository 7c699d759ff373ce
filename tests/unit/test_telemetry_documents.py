"""The dashboard and the alert rules speak of metrics that exist, with their labels, and leave none out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flask_taskengine.telemetry.names import METRICS, OUTCOMES

DOCS = Path(__file__).parents[2] / "docs"
ALERTS = (DOCS / "alerts.yml").read_text()
DASHBOARD = json.loads((DOCS / "grafana" / "taskengine.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]

SHOWN = {metric.shown: metric for metric in METRICS} | {
    f"{metric.name}_{part}": metric for metric in METRICS if metric.kind == "histogram" for part in ("bucket", "sum", "count")
}


def _names(text: str) -> set[str]:
    return set(re.findall(r"\btaskengine_\w+", text))


@pytest.mark.parametrize("text", [ALERTS, json.dumps(EXPRESSIONS)], ids=["alerts", "dashboard"])
def test_what_is_asked_for_exists(text: str) -> None:
    """Every name is that of a metric as Prometheus shows it, and every selector a label that it has."""
    assert _names(text) <= set(SHOWN)
    for name, selectors in re.findall(r"\b(taskengine_\w+)\{([^}]*)\}", text):
        assert set(re.findall(r"(\w+)\s*=", selectors)) <= set(SHOWN[name].labels)
    for outcomes in re.findall(r'outcome=~?\\?"([a-z|]+)', text):
        assert set(outcomes.split("|")) <= set(OUTCOMES.values())


def test_the_dashboard_shows_every_metric() -> None:
    """What is measured can be seen."""
    seen = {SHOWN[name].name for name in _names(json.dumps(EXPRESSIONS))}
    assert seen == {metric.name for metric in METRICS}


def test_gauges_of_the_queue_are_not_summed_over_targets() -> None:
    """Each target shows the same queue: its gauges stand inside a max, counters inside a sum."""
    for expression in EXPRESSIONS + re.findall(r"expr: (?:>-\s+)?(.+)", ALERTS):
        for name in _names(expression):
            if SHOWN[name].of_queue:
                assert re.search(rf"max(?: by \(type\))? ?\({name}\b", expression), expression


def test_panels_have_a_place_and_a_number() -> None:
    """Grafana can import it: ids are unique, and no two panels of a line overlap."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        taken |= cells
        assert at["x"] + at["w"] <= 24


def test_every_rule_says_what_it_means() -> None:
    """A name of its own, a severity and a summary."""
    rules = re.split(r"^\s*- alert: ", ALERTS, flags=re.MULTILINE)[1:]
    assert len({rule.split()[0] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        assert re.search(r"severity: (warning|critical)", rule)
        assert "summary: " in rule

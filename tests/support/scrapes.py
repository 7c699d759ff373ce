"""What a scrape shows, as numbers by name and labels."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """One scrape: ``scrape("taskengine_tasks", type="mail", status="PENDING")``; None for what is not shown."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value for family in self.families.values() for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def of(self, name: str, label: str = "type") -> dict[str, float]:
        """Return the numbers of a metric that has this label alone."""
        return {
            dict(labels)[label]: value for (shown, labels), value in self.samples.items() if shown == name and {label} == set(dict(labels))
        }

    def by(self, name: str, *keys: str) -> dict[Any, float]:
        """Return the numbers of a metric by several labels."""
        return {tuple(dict(labels)[key] for key in keys): value for (shown, labels), value in self.samples.items() if shown == name}


def scraped(registry: CollectorRegistry) -> Scrape:
    """Scrape a registry of this process."""
    return Scrape(generate_latest(registry).decode())

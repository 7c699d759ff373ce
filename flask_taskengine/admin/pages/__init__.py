"""The dashboard."""

from __future__ import annotations

from flask import Blueprint

from ...runtime.host import Host


def add_pages(blueprint: Blueprint, host: Host) -> None:
    """Give a blueprint the pages."""

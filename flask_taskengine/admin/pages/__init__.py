"""The dashboard: pages that the server renders, and forms that work without a script."""

from __future__ import annotations

from flask import Blueprint

from ...runtime.host import Host
from . import overview, queue, tasks
from .frame import Pages

ALL: tuple[Pages, ...] = (overview.pages, tasks.pages, queue.pages)


def add_pages(blueprint: Blueprint, host: Host) -> None:
    """Give a blueprint the pages."""
    for pages in ALL:
        pages.add_to(blueprint, host)

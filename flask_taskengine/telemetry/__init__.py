"""What can be seen of the engine from outside. Driven by its signals; the engine does not know it."""

from __future__ import annotations

from ..runtime.host import Host
from . import logs


def switch_on(host: Host) -> None:
    """Begin what the settings of an app ask for; only then are the libraries for it imported."""
    logs.connect()

"""Tells whether this process serves requests, without taking part in it.

A server can not be asked, so it is looked for: in the command that is running, and in what the threads are doing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from types import FrameType

import click
from flask.cli import run_command
from flask.helpers import get_debug_flag
from werkzeug.serving import is_running_from_reloader

_LOOPS = {
    "werkzeug.serving": {"serve_forever"},
    "gunicorn.workers": {"run"},
    "waitress.server": {"run"},
    "cheroot.server": {"serve"},
}
"""The modules and functions in which a server spends its life."""
_ASKED_FOR_BY_IMPORT = ("waitress", "cheroot")


class Prospect(Enum):
    """What a process that makes an app is going to do."""

    NEVER = "never"
    """It runs another command, or only watches over the process that serves."""
    SOON = "soon"
    """It is about to serve."""
    CHILDREN = "children"
    """The processes that it forks are going to serve."""
    UNKNOWN = "unknown"
    """Only a request will tell."""


def prospect() -> Prospect:
    """Tell what this process is going to do; to be asked while the app is being made."""
    context = click.get_current_context(silent=True)
    if context is not None:
        if context.command is not run_command:
            return Prospect.NEVER
        reload = context.params.get("reload")
        reloads = get_debug_flag() if reload is None else reload
        return Prospect.SOON if is_running_from_reloader() or not reloads else Prospect.NEVER
    modules = [frame.f_globals.get("__name__", "") for frame in _frames(inspect.currentframe())]
    if any(module.startswith("gunicorn.workers.") for module in modules) or is_running_from_reloader():
        return Prospect.SOON
    if any(module == "gunicorn.arbiter" for module in modules):
        return Prospect.CHILDREN
    return Prospect.SOON if any(name in sys.modules for name in _ASKED_FOR_BY_IMPORT) else Prospect.UNKNOWN


def is_serving() -> bool:
    """Say whether a thread of this process is in a server's loop."""
    stacks = list(sys._current_frames().values())  # noqa: SLF001 - documented, in spite of its name
    return any(_is_loop(frame) for top in stacks for frame in _frames(top))


def _is_loop(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return any(module.startswith(server) and frame.f_code.co_name in names for server, names in _LOOPS.items())


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back

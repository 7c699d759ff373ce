"""What Linux can do for a process that must not outlive its parent; elsewhere nothing, and closed pipes have to do."""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def signal_when_parent_dies(number: int, parent: int) -> bool:
    """Ask for a signal when the parent's thread that forked this process ends; return whether the parent still lives."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    return os.getppid() == parent

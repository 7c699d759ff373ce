"""Run a command that ends when its parent ends: ``python -I -S launch.py PARENT SIGNAL USER GROUP COMMAND...``.

A script of its own rather than a ``preexec_fn``: running Python between fork and exec is unsafe, and a warning, in a test
process that has threads. USER and GROUP are numeric ids to change to, or ``-`` to stay.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, signal_number: str, user: str, group: str, *command: str) -> None:
    """Change the user, tie this process to its parent and become the command."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    if user != "-":
        os.setgroups([])
        os.setgid(int(group))
        os.setuid(int(user))
    if prctl is not None:
        # After the change of user, which clears it. The kernel sends it when the parent's *thread* ends.
        prctl(PR_SET_PDEATHSIG, int(signal_number))
        if os.getppid() != int(parent):
            sys.exit("the parent ended before its child began")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])

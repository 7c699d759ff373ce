"""Claim as a node's dispatcher does until nothing is left: ``python -m tests.support.claimer URL NODE MOST TYPE...``.

Waits for a line on standard input, and prints the ids of what it has claimed, in order, one claim a line.
"""

from __future__ import annotations

import sys

from flask_taskengine.runtime.database import Database
from flask_taskengine.runtime.watchdog import Watchdog

from .hosts import make_host


def main(url: str, node: str, most: str, *types: str) -> None:
    """Claim up to ``most`` tasks at a time, of all types."""
    host = make_host(url)
    watchdog = Watchdog()
    watchdog.start()
    database = Database(host.engine.host(host.app), watchdog)
    line = database.line()
    rooms = dict.fromkeys(types, int(most))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    empty = 0
    while empty < 3:
        with line.statement() as connection:
            claimed = database.dialect.claim(connection, node, rooms, int(most))
        empty = 0 if claimed else empty + 1
        if claimed:
            sys.stdout.write(" ".join(str(task.id) for task in claimed) + "\n")
    line.close()
    watchdog.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Takes the tasks of nodes that died, and decides what becomes of them."""

from __future__ import annotations

import random

from ..domain.durations import spoken
from ..domain.outcome import Orphaned, Verdict
from ..signals import node_expired, task_requeued
from ..store import nodes, tasks
from .completer import Completer, Ended
from .database import Database, Line
from .events import facts, tell
from .heartbeat import Steadiness
from .loop import Loop

PAGE = 100
"""Tasks per transaction."""
_REMEMBERED = 86_400.0
"""Seconds after which the name of a dead node is removed."""
_FORGET_EVERY = 240
"""Rounds between two looks for names to remove."""


class Reaper:
    """One thread in every worker: requeues what runs on nodes that are silent for longer than their lease.

    It acts only while its own node has been heard for a whole lease without a gap.
    """

    def __init__(self, database: Database, completer: Completer, steadiness: Steadiness) -> None:
        self._database = database
        self._completer = completer
        self._steadiness = steadiness
        self._lease = database.host.settings.lease
        self._line = database.line()
        self._loop = Loop("reaper", self._run_once)
        self._rounds = random.randrange(_FORGET_EVERY)
        self.node = ""

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
        self._line.close()

    def _run_once(self) -> float:
        try:
            self._reap()
        finally:
            # Not kept from one round to the next: a connection is worth more than the time to open one.
            self._line.close()
        # Jittered, so that not all workers look at once.
        return self._lease / 4 * random.uniform(0.75, 1.25)

    def _reap(self) -> None:
        if self._may_act():
            with self._line.statement() as connection:
                silent = tasks.orphaned_nodes(connection, self._database.tables, self._lease)
            random.shuffle(silent)
            why = f"was silent for longer than its lease of {spoken(self._lease)}: its process or machine died, or lost the database"
            for node in silent:
                take_back(self._database, self._line, self._completer, node, f"node {node} {why}", self._lease)
            self._forget()

    def _may_act(self) -> bool:
        since = self._steadiness.since
        if since is None or not self.node:
            return False
        with self._line.statement() as connection:
            heard = nodes.heard(connection, self._database.tables, self.node, since)
        return heard is not None and heard[0] <= self._steadiness.largest_gap and heard[1] >= self._lease

    def _forget(self) -> None:
        self._rounds += 1
        if self._rounds % _FORGET_EVERY == 0:
            with self._line.statement() as connection:
                nodes.forget_expired(connection, self._database.tables, _REMEMBERED)


def take_back(database: Database, line: Line, completer: Completer, node: str, why: str, lease: float | None) -> bool:
    """End a node's lease and decide, page by page, what becomes of the tasks that run on it; each page commits.

    Args:
        why: a sentence for ``last_error``.
        lease: seconds for which the node must have been silent; None where it is known to be dead.

    Returns:
        Whether nothing runs on it any more. False also where it is alive, or another transaction is at its row.
    """
    while True:
        with line.transaction() as connection:
            if not nodes.expire(connection, database.tables, node, lease):
                return False
            page = [Ended(task, Orphaned(why), seconds) for task, seconds in tasks.lock_running_on(connection, database.tables, node, PAGE)]
            outcomes = [completer.settle(connection, ended, node) for ended in page]
            more = bool(tasks.running_on(connection, database.tables, node))
        for ended, outcome in zip(page, outcomes, strict=True):
            completer.announce(ended, outcome)
            if outcome is not None and outcome.verdict is Verdict.RETRIED:
                common = facts(ended.task, completer.node)
                tell(task_requeued, database.host, **common, reason="orphaned", duration=ended.duration)
        # What is left over is locked by others: the next round looks again.
        if not more:
            tell(node_expired, database.host, node=completer.node, expired=node)
        if not more or not page:
            return not more

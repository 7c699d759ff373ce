"""Removes tasks whose time of retention is over: one node at a time, in small batches, whatever else the worker does."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..domain.states import TaskStatus
from ..engine.retention import Rule, rules
from ..settings import Settings
from ..store import nodes
from ..store.retention import Batch, Mark, Removed, last_run
from .database import Database
from .host import Host
from .loop import Loop
from .watchdog import Watchdog

LEASE = "pruner"
"""Name of the lease that the node which prunes holds."""
BATCH = 1000
"""Tasks removed by one transaction."""
_UNREGISTERED = 1.0
"""Seconds between looks whether the node is registered by now."""
_SPREAD = 0.1
"""Share of a wait by which it may be longer, so that the nodes do not all come at once."""

_logger = logging.getLogger("flask_taskengine")


@dataclass(slots=True)
class _Round:
    """The part of a run that one rule asks for."""

    rule: Rule
    after: Mark | None = None

    def batch(self) -> Batch:
        """Return what the next transaction is to remove."""
        rule = self.rule
        return Batch(status=rule.status, kept_for=rule.kept_for, archive=rule.archive, most=BATCH, after=self.after)

    def goes_on(self, removed: Removed) -> bool:
        """Take note of what was removed; return whether there may be more."""
        self.after = removed.last
        return removed.count == BATCH


class Pruner:
    """One thread that prunes every ``interval``, unless another node has done so in that time. It goes on until nothing is left.

    Args:
        database: where its connection comes from; none is kept open between two runs.
        settings: the time of retention, and the lease that a node must hold to prune.
        node: returns the name under which the node is registered; empty before it is.
    """

    def __init__(self, database: Database, settings: Settings, node: Callable[[], str]) -> None:
        self._database = database
        self._rules = rules(settings.retention)
        self._interval = settings.retention.interval
        self._lease = settings.lease
        self._node = node
        self._line = database.line()
        self._rounds: deque[_Round] = deque()
        self._removed: Counter[TaskStatus] = Counter()
        self._loop = Loop("pruner", self._run_once)

    def start(self) -> None:
        """Begin, if the settings do not keep every task for ever."""
        if self._rules:
            self._loop.start()

    def stop(self) -> None:
        """End after the current batch; what is left is another node's at once."""
        self._loop.stop()
        if self._rounds:
            try:
                self._let_go()
            except Exception as error:
                _logger.warning("the pruner's lease could not be given back, it will expire: %s", error)
        self._line.close()

    # --- one batch ----------------------------------------------------------------------------------------------------

    def _run_once(self) -> float:
        node = self._node()
        if not node:
            return _UNREGISTERED
        if not self._rounds:
            wait = self._seconds_left(node)
            if wait > 0:
                return self._rest(wait)
            self._rounds.extend(_Round(rule) for rule in self._rules)
        began = time.monotonic()
        if not self._prune(node):
            self._rounds.clear()  # another node has taken over
            return self._rest(self._lease)
        if not self._rounds:
            return self._finish(node)
        # As long as the batch took: whoever else wants to write gets at least every other turn.
        return time.monotonic() - began

    def _seconds_left(self, node: str) -> float:
        """Return the seconds until a run is due; 0 where a node has died during one."""
        with self._line.statement() as connection:
            last = last_run(connection, self._database.tables, LEASE)
        if last is None or last[0] == node:
            return 0
        holder, since = last
        return self._interval - since if holder is None else -since

    def _prune(self, node: str) -> bool:
        """Remove a batch, or only take note that nothing is left; return whether the lease is this node's."""
        current = self._rounds[0]
        with self._line.transaction() as connection:
            if not nodes.take_lease(connection, self._database.tables, LEASE, node, self._lease):
                return False
            removed = self._database.dialect.prune(connection, current.batch())
        self._removed[current.rule.status] += removed.count
        if not current.goes_on(removed):
            self._rounds.popleft()
        return True

    def _finish(self, node: str) -> float:
        with self._line.statement() as connection:
            nodes.give_back_lease(connection, self._database.tables, LEASE, node)
        if self._removed.total():
            _logger.info("pruned: %s", ", ".join(f"{number} {status}" for status, number in sorted(self._removed.items())))
        self._removed.clear()
        return self._rest(self._interval)

    def _rest(self, wait: float) -> float:
        self._line.close()
        return wait * random.uniform(1, 1 + _SPREAD)

    def _let_go(self) -> None:
        """End the lease without giving it back, which says that the run is not finished."""
        with self._line.transaction() as connection:
            nodes.take_lease(connection, self._database.tables, LEASE, self._node(), 0)


def prune_now(host: Host, chosen: Sequence[Rule]) -> dict[TaskStatus, int]:
    """Remove what the rules ask for, in short transactions on a connection of its own; return how many of each status.

    Needs no lease: two that prune at once share the work.

    Raises:
        ConfigError: the database is in memory, where only its own connection sees it.
    """
    counts = {rule.status: 0 for rule in chosen}
    watchdog = Watchdog()
    database = Database(host, watchdog)
    line = database.line()
    watchdog.start()
    try:
        for current in map(_Round, chosen):
            more = True
            while more:
                with line.transaction() as connection:
                    removed = database.dialect.prune(connection, current.batch())
                counts[current.rule.status] += removed.count
                more = current.goes_on(removed)
    finally:
        line.close()
        watchdog.stop()
        database.close()
    return counts

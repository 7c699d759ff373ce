"""The gauges of the queue, read from the database when they are asked for, by one statement every few seconds at most."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ..runtime.database import own_engine
from ..runtime.host import Host
from ..store.gauges import QueueState
from . import names
from .counting import Types
from .names import Metric

FRESH = 5.0
"""Seconds for which what was read is shown again."""
PATIENCE = 3.0
"""Seconds that a scrape waits for the database; without an answer it goes on without these gauges."""
_STATEMENT_DEADLINE = 15.0

_logger = logging.getLogger("flask_taskengine")


class QueueReader:
    """Reads the state of one app's queue, in a thread of its own, so that a database that hangs holds up no scrape."""

    def __init__(self, host: Host) -> None:
        self._host = weakref.ref(host)
        self._state: QueueState | None = None
        self._read_at = float("-inf")
        self._reading = self._failed = False
        self._forget_threads()

    def read(self) -> QueueState | None:
        """Return the state, not older than ``FRESH`` seconds; None where the database does not say."""
        if self._pid != os.getpid():
            self._forget_threads()
        with self._changed:
            if time.monotonic() - self._read_at >= FRESH and not self._reading:
                self._reading = True
                threading.Thread(target=self._read, name="taskengine-gauges", daemon=True).start()
            self._changed.wait_for(lambda: not self._reading, PATIENCE)
            return self._state if time.monotonic() - self._read_at < FRESH + PATIENCE else None

    def _forget_threads(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._reading = False

    def _read(self) -> None:
        state = None
        try:
            host = self._host()
            if host is not None:
                with host.unseen():
                    state = self._asked(host)
            self._failed = False
        except Exception as error:  # noqa: BLE001 - a scrape must not end by whatever the database or its driver says
            if not self._failed:
                _logger.warning("the gauges of the queue can not be read: %s: %s", type(error).__name__, error)
            self._failed = True
        with self._changed:
            self._state, self._reading, self._read_at = state, False, time.monotonic()
            self._changed.notify_all()

    @staticmethod
    def _asked(host: Host) -> QueueState:
        engine = own_engine(host)
        try:
            dialect = host.dialect(engine.dialect.name)
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                driver = connection.connection.driver_connection
                deadline = threading.Timer(_STATEMENT_DEADLINE, dialect.sever, (driver,))
                deadline.daemon = True
                deadline.start()
                try:
                    return dialect.queue_state(connection, host.settings.lease)
                finally:
                    deadline.cancel()
        finally:
            engine.dispose()


class QueueCollector(Collector):
    """Shows the gauges of the queues of all apps in this process; a type that has gone empty is shown as 0."""

    def __init__(self) -> None:
        self._queues: WeakKeyDictionary[Host, tuple[QueueReader, Types]] = WeakKeyDictionary()

    def add(self, host: Host, types: Types) -> None:
        """Show the queue of an app."""
        if host not in self._queues:
            self._queues[host] = QueueReader(host), types

    def describe(self) -> list[GaugeMetricFamily]:
        """Name the metrics, without a look into the database."""
        return list(_families().values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read the queues, and put them together."""
        values = _Values()
        for reader, types in list(self._queues.values()):
            state = reader.read()
            values.put(names.QUEUE_READ, (), float(state is not None), min)
            if state is not None:
                _fill(values, state, types)
        families = _families()
        for (name, labels), value in sorted(values.found.items()):
            families[name].add_metric(labels, value)
        yield from families.values()


class _Values:
    """Numbers by metric and labels; what comes under the same labels is put together."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, tuple[str, ...]], float] = {}

    def put(self, metric: Metric, labels: tuple[str, ...], value: float, together: Callable[[float, float], float] = float.__add__) -> None:
        key = metric.name, labels
        self.found[key] = together(self.found[key], value) if key in self.found else value


def _fill(values: _Values, state: QueueState, types: Types) -> None:
    for label in types.known() | {types.label(name) for name in (*state.pending, *state.running)}:
        for status in ("PENDING", "RUNNING"):
            values.put(names.TASKS, (label, status), 0.0)
        for metric in (names.DUE, names.OLDEST_DUE, names.PAUSED):
            values.put(metric, (label,), 0.0)
    for name, number in state.pending.items():
        values.put(names.TASKS, (types.label(name), "PENDING"), float(number))
    for name, number in state.running.items():
        values.put(names.TASKS, (types.label(name), "RUNNING"), float(number))
    for name, number in state.due.items():
        values.put(names.DUE, (types.label(name),), float(number))
    for name, seconds in state.due_for.items():
        values.put(names.OLDEST_DUE, (types.label(name),), seconds, max)
    values.put(names.PAUSED, ("*",), 0.0)
    for name in state.paused:
        values.put(names.PAUSED, ("*" if name == "*" else types.label(name),), 1.0, max)
    for (name, scope), limit in state.limits.items():
        values.put(names.LIMIT, (types.label(name), scope), float(limit), min)
    values.put(names.NODES, (), float(state.nodes))
    if state.dead_tuples is not None:
        values.put(names.DEAD_TUPLES, (), float(state.dead_tuples))
    if state.notify_queue is not None:
        values.put(names.NOTIFY_QUEUE, (), state.notify_queue, max)


def _families() -> dict[str, GaugeMetricFamily]:
    return {one.name: GaugeMetricFamily(one.name, one.meaning, labels=one.labels) for one in names.METRICS if one.of_queue}

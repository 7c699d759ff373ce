"""The log lines of events, the task's fields on records, and the worker's own handler."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from blinker import NamedSignal

from flask_taskengine import signals
from flask_taskengine.domain.outcome import Failure
from flask_taskengine.engine.context import TaskContext, running
from flask_taskengine.telemetry import logs

EVENTS = "flask_taskengine.events"
FACTS: dict[str, Any] = {"task_id": 7, "task_type": "email.send", "attempt": 2, "node": "web:1:aa"}
FAILURE = Failure("SMTPError", "no route\nto host", "Traceback ...")


@pytest.fixture(autouse=True)
def connected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Log events at every level, and nothing of it afterwards."""
    caplog.set_level(logging.DEBUG, "flask_taskengine")
    logs.connect()
    yield
    logs.disconnect()


@contextmanager
def unconfigured() -> Iterator[io.StringIO]:
    """Give the standard error of a program whose root logger nobody has set up; pytest's own handlers come before any fixture."""
    root, stderr = logging.getLogger(), sys.stderr
    before = root.handlers[:], root.level
    root.handlers[:] = []
    sys.stderr = stream = io.StringIO()
    try:
        yield stream
    finally:
        sys.stderr = stderr
        root.handlers[:], level = before
        root.setLevel(level)


def context() -> TaskContext:
    """Return the context of a running attempt."""
    return TaskContext(
        task_id=7,
        type="email.send",
        attempt=2,
        max_attempts=5,
        token=3,
        idempotency_key=None,
        enqueued_at=datetime.now(UTC),
        deadline=None,
    )


# --- one line for each event ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signal", "fields", "level", "line"),
    [
        (signals.task_started, {"waited": 0.25}, "DEBUG", "task 7 (email.send) started, attempt 2, 0.250 s after it was due"),
        (signals.task_succeeded, {"duration": 0.0123}, "INFO", "task 7 (email.send) succeeded in 0.012 s"),
        (
            signals.task_retried,
            {"duration": 1.0, "failure": FAILURE, "delay": 5.125},
            "WARNING",
            "task 7 (email.send) failed in attempt 2, is due again in 5.12 s: SMTPError: no route",
        ),
        (
            signals.task_failed,
            {"duration": 1.0, "failure": FAILURE},
            "ERROR",
            "task 7 (email.send) is FAILED after attempt 2: SMTPError: no route",
        ),
        (
            signals.task_dead,
            {"duration": 1.0, "failure": FAILURE},
            "ERROR",
            "task 7 (email.send) is DEAD after attempt 2: SMTPError: no route",
        ),
        (signals.task_timed_out, {"timeout": 30.0}, "WARNING", "task 7 (email.send) overran its timeout of 30 s in attempt 2"),
        (signals.task_cancelled, {"duration": None}, "INFO", "task 7 (email.send) is CANCELLED"),
        (signals.task_requeued, {"reason": "released"}, "INFO", "task 7 (email.send) is PENDING again: released"),
        (
            signals.task_lease_lost,
            {"token": 3},
            "WARNING",
            "task 7 (email.send) is lost to this node, what attempt 2 wrote is rolled back",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, NamedSignal) else "",
)
def test_each_event_is_one_line(
    caplog: pytest.LogCaptureFixture, signal: NamedSignal, fields: dict[str, Any], level: str, line: str
) -> None:
    """Of its level, on one logger, with the signal's fields as attributes; of an error the first line is told."""
    signals.emit(signal, None, **FACTS, **fields)
    [record] = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == (EVENTS, level, line)
    carried = vars(record)
    if fields.pop("failure", None):
        fields |= {"error_class": "SMTPError", "error": "SMTPError: no route", "traceback": "Traceback ..."}
    assert FACTS | fields == {name: carried[name] for name in FACTS | fields}


def test_a_signal_without_a_line_is_on_purpose() -> None:
    """A claim is told by the start, and an enqueue is the app's own act; of nodes the worker itself tells, of schedules their tasks."""
    silent = set(signals.namespace) - {signal.name for signal, _, _ in logs.LINES}
    runs = {"schedule_started", "schedule_finished", "schedule_crashed"}
    told_of = {name for name in silent if name.startswith(("task_", "schedule_"))}
    assert told_of == {"task_claimed", "task_enqueued", "task_deduplicated", *runs}


def test_what_an_error_says_can_not_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Control characters are escaped and a long message is shortened."""
    failure = Failure("E", "\r\x1b[2J\x00" + "x" * 5000)
    signals.emit(signals.task_dead, None, **FACTS, duration=1.0, failure=failure)
    message = caplog.records[0].getMessage()
    assert message.isprintable()
    assert len(message) < 400


def test_fields_may_be_added(caplog: pytest.LogCaptureFixture) -> None:
    """A signal that carries more than its line tells is logged with it."""
    signals.emit(signals.task_succeeded, None, **FACTS, duration=1.0, queue="new")
    assert vars(caplog.records[0])["queue"] == "new"


def test_connecting_twice_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    """Any number of apps in a process may ask for the lines."""
    logs.connect()
    signals.emit(signals.task_succeeded, None, **FACTS, duration=1.0)
    assert len(caplog.records) == 1


def test_a_level_that_is_off_makes_no_record(caplog: pytest.LogCaptureFixture) -> None:
    """What would not be seen is not made."""
    logging.getLogger(EVENTS).setLevel(logging.ERROR)
    try:
        signals.emit(signals.task_succeeded, None, **FACTS, duration=1.0)
        signals.emit(signals.task_dead, None, **FACTS, duration=1.0, failure=FAILURE)
    finally:
        logging.getLogger(EVENTS).setLevel(logging.NOTSET)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.timing
def test_a_line_costs_little() -> None:
    """A succeeded task's line is made and written in less than 150 µs, and costs less than 20 µs while it is off.

    Measured here: 13 to 19 µs and 2 µs.
    """
    with unconfigured():
        logs.configure()
        assert _seconds_of_one_line() < 150e-6
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("flask_taskengine").setLevel(logging.NOTSET)
        assert _seconds_of_one_line() < 20e-6


def _seconds_of_one_line(times: int = 2000) -> float:
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(times):
            signals.emit(signals.task_succeeded, None, **FACTS, duration=1.0)
        best = min(best, (time.perf_counter() - began) / times)
    return best


# --- the task on every other record -----------------------------------------------------------------------------------


def record() -> logging.LogRecord:
    """Return what any library may log, after the filter."""
    made = logging.LogRecord("some.library", logging.INFO, "file.py", 1, "hello %s", ("you",), None)
    assert logs.TaskFields().filter(made)
    return made


def test_records_inside_a_task_carry_it_and_none_after() -> None:
    """Every record, whoever logs it, gets the three fields while the task runs in this thread."""
    before = record()
    token = running.set(context())
    inside = record()
    running.reset(token)
    after = record()
    assert [vars(inside)[name] for name in logs.FIELDS] == [7, "email.send", 2]
    for other in (before, after):
        assert not set(logs.FIELDS) & set(vars(other))


def test_a_record_that_names_a_task_keeps_it() -> None:
    """What ``extra`` said is not replaced: a task may log about another one."""
    made = logging.makeLogRecord({"task_id": 99})
    token = running.set(context())
    logs.TaskFields().filter(made)
    running.reset(token)
    assert vars(made)["task_id"] == 99
    assert not hasattr(made, "attempt")


# --- the worker's own handler -----------------------------------------------------------------------------------------


def test_a_program_without_logging_gets_lines_on_stderr() -> None:
    """Time, level, logger and message; inside a task, which; an event's line names its task itself."""
    with unconfigured() as stream:
        assert logs.configure()
        logging.getLogger("host").info("outside")
        token = running.set(context())
        logging.getLogger("host").warning("inside")
        context().logger.info("by its logger")
        running.reset(token)
        signals.emit(signals.task_succeeded, None, **FACTS, duration=1.0)
        logging.getLogger("host").debug("too detailed")
        said = [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()]
        assert said == [
            "INFO    host: outside",
            "WARNING host: task 7 (email.send), attempt 2: inside",
            "INFO    flask_taskengine.task: task 7 (email.send), attempt 2: by its logger",
            "INFO    flask_taskengine.events: task 7 (email.send) succeeded in 1.000 s",
        ]


def test_a_record_that_names_only_its_task_is_written() -> None:
    """A host that gives ``task_id`` alone does not break the format."""
    with unconfigured() as stream:
        logs.configure()
        logging.getLogger("host").warning("half", extra={"task_id": 9})
        assert stream.getvalue().endswith("WARNING host: half\n")


def test_json_lines_carry_everything() -> None:
    """One object for each record, whatever the message holds; fields of ``extra`` and the traceback are in it."""
    with unconfigured() as stream:
        logs.configure(as_json=True)
        token = running.set(context())
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("host").exception("failed\nbadly", extra={"order": {1}})
        running.reset(token)
        [line] = stream.getvalue().splitlines()
        said = json.loads(line)
        assert datetime.fromisoformat(said.pop("time")).utcoffset() is not None
        assert said.pop("traceback").endswith("ValueError: two\nlines")
        assert said == {
            "level": "ERROR",
            "logger": "host",
            "message": "failed\nbadly",
            "task_id": 7,
            "task_type": "email.send",
            "attempt": 2,
            "order": "{1}",
        }


def test_a_program_that_has_configured_logging_is_left_alone() -> None:
    """Its handlers stay as they are; a level that was asked for is that of the engine's loggers."""
    with unconfigured():
        root, own = logging.getLogger(), logging.getLogger("flask_taskengine")
        theirs = logging.NullHandler()
        root.addHandler(theirs)
        before = root.level
        assert not logs.configure(logging.ERROR)
        assert (root.handlers, root.level, own.level) == ([theirs], before, logging.ERROR)

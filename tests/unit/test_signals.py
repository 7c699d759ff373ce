"""How the engine announces."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from blinker import NamedSignal

from flask_taskengine import signals
from flask_taskengine.signals import emit


@pytest.fixture
def signal() -> NamedSignal:
    """Return a signal that nobody else has."""
    return NamedSignal("task_tested")


class Failing:
    """A receiver whose method is made anew at each look-up."""

    def __init__(self) -> None:
        self.calls = 0

    def receive(self, _sender: Any, /, **fields: Any) -> None:
        self.calls += 1
        raise ValueError("no")


def test_the_signals_are_those_of_the_design() -> None:
    """Each name of the design is a signal of one namespace, with a sentence, and is found under its name in the module."""
    assert set(signals.namespace) >= {
        "task_enqueued",
        "task_claimed",
        "task_started",
        "task_succeeded",
        "task_retried",
        "task_failed",
        "task_dead",
        "task_cancelled",
        "task_timed_out",
        "task_lease_lost",
        "task_requeued",
        "schedule_started",
        "schedule_finished",
        "schedule_crashed",
        "schedule_missed",
    }
    for name, signal in signals.namespace.items():
        assert getattr(signals, name) is signal
        assert signal.__doc__
        assert signal.__doc__.endswith(".")


def test_receivers_get_the_sender_and_the_fields(signal: NamedSignal) -> None:
    """Every receiver is called with the sender and all fields, one that asked for another sender is not."""
    seen: list[object] = []

    def receive(sender: object, **fields: object) -> None:
        seen.append((sender, fields))

    def receive_of_other(sender: object, **fields: object) -> None:
        seen.append("other")

    signal.connect(receive)
    signal.connect(receive_of_other, sender="other app")
    emit(signal, "app", task_id=7, task_type="email")
    assert seen == [("app", {"task_id": 7, "task_type": "email"})]


def test_a_receiver_that_raises_changes_nothing_for_the_others(signal: NamedSignal, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the order, the other receivers are called and the engine goes on."""
    seen: list[int] = []

    def receive(sender: object, place: int) -> None:
        if place == 0:
            raise ValueError
        seen.append(place)

    receivers = [lambda sender, place=place, **fields: receive(sender, place) for place in (1, 0, 2, 0, 3)]
    for receiver in receivers:
        signal.connect(receiver)
    emit(signal, "app")
    assert sorted(seen) == [1, 2, 3]


def test_a_receiver_that_raises_is_logged_once(signal: NamedSignal, caplog: pytest.LogCaptureFixture) -> None:
    """Many events, one log record for each receiver, with its traceback; bound methods are told apart by their object."""
    one, other = Failing(), Failing()
    signal.connect(one.receive)
    signal.connect(other.receive)
    for _ in range(50):
        emit(signal, "app")
    assert (one.calls, other.calls) == (50, 50)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.ERROR]
    assert caplog.records[0].name == "flask_taskengine.signals"
    assert "task_tested" in caplog.text
    assert "ValueError: no" in caplog.text


def test_a_receiver_without_weak_references_is_logged_once(signal: NamedSignal, caplog: pytest.LogCaptureFixture) -> None:
    """What can not be watched is remembered all the same."""

    class Slotted:
        __slots__ = ()

        def __call__(self, _sender: object, /, **fields: object) -> None:
            raise ValueError

    signal.connect(Slotted(), weak=False)
    emit(signal, "app")
    emit(signal, "app")
    assert len(caplog.records) == 1


def test_a_new_receiver_is_logged_anew(signal: NamedSignal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that is gone leaves nothing behind that would silence a later one at the same address."""
    logged: list[str] = []
    # pytest keeps every record, and with it the receiver: count without one.
    monkeypatch.setattr(signals, "_logger", SimpleNamespace(exception=lambda text, *_: logged.append(text)))
    before = len(signals._blamed)
    for _ in range(20):
        failing = Failing()
        signal.connect(failing.receive)
        emit(signal, "app")
        del failing
    assert len(logged) == 20
    assert len(signals._blamed) == before


def test_a_coroutine_function_is_refused_once(signal: NamedSignal, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that would have to be awaited is told so in the log; nothing is left un-awaited."""

    async def receive(sender: object, **fields: object) -> None:
        raise AssertionError

    signal.connect(receive)
    emit(signal, "app")
    emit(signal, "app")
    assert len(caplog.records) == 1
    assert "must be a plain function" in caplog.text


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_not_the_receivers(signal: NamedSignal, interrupt: type[BaseException]) -> None:
    """What is no ``Exception`` was not meant for the receiver and passes."""

    def receive(sender: object, **fields: object) -> None:
        raise interrupt

    signal.connect(receive)
    with pytest.raises(interrupt):
        emit(signal, "app")


def test_a_muted_signal_is_silent(signal: NamedSignal) -> None:
    """Blinker's ``muted`` holds for the engine's announcements too."""
    failing = Failing()
    signal.connect(failing.receive)
    with signal.muted():
        emit(signal, "app")
    assert failing.calls == 0


def test_fields_may_have_any_name(signal: NamedSignal) -> None:
    """A field called like an argument of ``emit`` is still a field."""
    seen: list[dict[str, Any]] = []

    def receive(_sender: object, /, **fields: Any) -> None:
        seen.append(fields)

    signal.connect(receive)
    emit(signal, "app", signal=1, sender=2)
    assert seen == [{"signal": 1, "sender": 2}]

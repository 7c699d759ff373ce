"""Which processor runs which task type."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flask_taskengine.domain.errors import ConfigError, DuplicateTypeError
from flask_taskengine.engine.payload import plain_codec
from flask_taskengine.engine.processor import processor_from_function
from flask_taskengine.engine.registry import Processor, Registry, type_fault


def send(payload: Any) -> None:
    """Stand for a handler."""


def send_again(payload: Any) -> None:
    """Stand for another."""


def test_a_processor_is_found_by_its_type() -> None:
    """The registry knows what was added, and lists its types in order."""
    registry = Registry()
    report, mail = processor_from_function(send, "report"), processor_from_function(send_again, "email.send")
    registry.add(report)
    registry.add(mail)
    assert registry.get("report") is report
    assert registry.get("unknown") is None
    assert registry.types() == ("email.send", "report")
    assert "report" in registry
    assert "unknown" not in registry
    assert len(registry) == 2


def test_a_second_processor_of_a_type_is_an_error_that_names_both_places() -> None:
    """Who has two handlers for one type learns where both stand, down to file and line; the first one stays."""
    registry = Registry()
    first = processor_from_function(send, "email.send")
    registry.add(first)
    with pytest.raises(DuplicateTypeError) as caught:
        registry.add(processor_from_function(send_again, "email.send"))
    (fault,) = caught.value.faults
    for function in (send, send_again):
        assert f"{__name__}.{function.__name__} ({__file__}:{function.__code__.co_firstlineno})" in fault
    assert fault.startswith("task type 'email.send' is registered by ")
    assert fault.endswith(": give one of them another name")
    assert isinstance(caught.value, ConfigError)
    assert registry.get("email.send") is first


def test_the_same_function_twice_is_an_error_too() -> None:
    """A module imported under two names, or an app factory that runs twice on one engine, is told so."""
    registry = Registry()
    registry.add(processor_from_function(send, "email.send"))
    with pytest.raises(DuplicateTypeError, match=r"registered twice by .*make the engine where its tasks are registered"):
        registry.add(processor_from_function(send, "email.send"))


def test_of_threads_that_add_one_type_one_wins() -> None:
    """No second processor slips in between the look and the entry."""
    registry = Registry()
    barrier = threading.Barrier(8)
    outcomes: list[str] = []

    def add() -> None:
        processor = Processor(type="t", call=lambda payload, context: None, codec=plain_codec("t"), place="here")
        barrier.wait()
        try:
            registry.add(processor)
            outcomes.append("added")
        except DuplicateTypeError:
            outcomes.append("refused")

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["added"] + ["refused"] * 7


@pytest.mark.parametrize("name", ["a", "email.send", "Bericht täglich", "x" * 255, "a*", "日本"])
def test_good_names_have_no_fault(name: str) -> None:
    """A type's name may be any printable text that fits its column."""
    assert type_fault(name) is None


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("", "is empty"),
        (" a", "white space"),
        ("a\n", "white space"),
        ("x" * 256, "has 256 characters: 255 are the most"),
        ("a\0b", "can not be printed"),
        ("a\udc80b", "can not be printed"),
        ("a\nb", "can not be printed"),
        ("*", "means every type"),
        (None, "is no text"),
        (5, "is no text"),
        (b"a", "is no text"),
    ],
)
def test_a_wrong_name_is_told_what_is_wrong(name: Any, part: str) -> None:
    """The fault names the remedy, and is itself text that can be stored."""
    fault = type_fault(name)
    assert fault is not None
    assert part in fault
    assert ": " in fault
    fault.encode()

"""What is kept of an error, whatever it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_taskengine.domain.errors import PayloadError, Reject
from flask_taskengine.domain.outcome import Failure
from flask_taskengine.engine.failures import MESSAGE_LIMIT, TRACEBACK_LIMIT, clean_text, failure_from

any_text = st.text(st.characters(codec=None, exclude_categories=[]))


class OddError(Exception):
    """An error of the host."""


class UnreadableError(Exception):
    """An error that can not even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def raised(error: BaseException) -> BaseException:
    """Return an error with a traceback."""
    with pytest.raises(type(error)):
        raise error
    return error


def failure_of(function: Callable[[], Any]) -> Failure:
    """Return what is kept of the error that a function raises."""
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - that is what is wanted.
        return failure_from(error)
    raise AssertionError


def assert_storable(failure: Failure) -> None:
    """Check that any database can store it: no NUL, valid UTF-8, within the columns."""
    for text, limit in ((failure.error_class, 255), (failure.message, MESSAGE_LIMIT), (failure.traceback or "", TRACEBACK_LIMIT)):
        assert "\0" not in text
        assert len(text) <= limit
        # What MySQL's TEXT holds.
        assert len(text.encode()) <= 65_535


def test_class_message_and_traceback_are_kept() -> None:
    """An error is told as Python tells it."""

    def handler() -> None:
        raise OddError("the bank says no")

    failure = failure_of(handler)
    assert failure.error_class == f"{__name__}.OddError"
    assert failure.message == "the bank says no"
    assert failure.traceback is not None
    lines = failure.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == f"{__name__}.OddError: the bank says no"
    assert any(line.strip() == 'raise OddError("the bank says no")' for line in lines)
    assert any(line.endswith("in handler") for line in lines)


@pytest.mark.parametrize(
    ("error", "error_class", "message"),
    [
        (ValueError("x"), "ValueError", "x"),
        (KeyError("k"), "KeyError", "'k'"),
        (KeyError(), "KeyError", ""),
        (SystemExit(3), "SystemExit", "3"),
        (Reject("never"), "Reject", "never"),
        (PayloadError("t", {"payload.a": "wrong"}), "PayloadError", "payload of task type 't': payload.a: wrong"),
    ],
)
def test_built_in_errors_and_our_own_have_their_public_names(error: BaseException, error_class: str, message: str) -> None:
    """No module stands before a name that everybody knows."""
    failure = failure_from(raised(error))
    assert (failure.error_class, failure.message) == (error_class, message)
    assert str(failure) == (f"{error_class}: {message}" if message else error_class)


def test_an_error_that_was_never_raised_has_no_frames() -> None:
    """An error without a traceback is told all the same."""
    assert failure_from(ValueError("x")).traceback == "ValueError: x\n"


@given(any_text, st.integers(30, 300))
def test_clean_text_can_always_be_stored(text: str, limit: int) -> None:
    """Whatever text comes in, storable text within the limit comes out, and good text as it was."""
    cleaned = clean_text(text, limit)
    assert "\0" not in cleaned
    assert len(cleaned) <= limit
    cleaned.encode()
    if len(text) <= limit and "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text):
        assert cleaned == text


def test_odd_characters_stay_visible() -> None:
    """NUL and lone surrogates are replaced by what they were, and their neighbours are left alone."""
    assert clean_text("a\0b\udc80c😀ä\x1b", 100) == "a\\x00b\\udc80c😀ä\x1b"


def test_long_text_is_shortened_in_its_middle() -> None:
    """Begin and end are kept, and how much is missing is told."""
    text = clean_text("begin" + "x" * 10_000_000 + "end", 2_000)
    assert len(text) == 2_000
    assert text.startswith("beginx")
    assert text.endswith("xend")
    assert "… 9,998,008 characters left out …" in text
    assert clean_text("abcdef", 3) == "abc"
    assert len(clean_text("\0" * 5_000, 100)) <= 100


@given(any_text, any_text)
def test_any_message_can_be_stored(message: str, note: str) -> None:
    """Neither messages nor notes nor the text of causes can keep a failure from being recorded."""
    error = OddError(message)
    error.add_note(note)
    error.__cause__ = ValueError(message)
    assert_storable(failure_from(raised(error)))


def test_an_error_that_can_not_be_read_is_recorded() -> None:
    """`__str__` that raises, or returns no text, is told instead of the message."""
    failure = failure_from(raised(UnreadableError()))
    assert failure.message == "(its message can not be read: __str__ raised RuntimeError)"
    assert failure.traceback is not None
    assert failure.traceback.endswith(f"UnreadableError: {failure.message}\n")
    assert failure_from(KeyError(UnreadableError())).message == "(its message can not be read: __str__ raised RuntimeError)"

    class Wrong(Exception):
        def __str__(self) -> Any:
            return 5  # noqa: PLE0307 - that is what is tested.

    assert failure_from(Wrong()).message == "(its message can not be read: __str__ raised TypeError)"


def test_an_error_whose_parts_are_odd_is_recorded() -> None:
    """Notes that are no list, a module that is no text, a name of thousands of characters: the failure is kept."""
    error = ValueError("x")
    error.__notes__ = 5  # type: ignore[assignment]
    assert failure_from(raised(error)).message == "x"
    odd = type("N" * 1_000, (Exception,), {"__module__": None})
    assert_storable(failure_from(raised(odd("\0"))))

    class Hostile(Exception):
        @property
        def __notes__(self) -> Any:  # type: ignore[override] # that is what is tested.
            raise RuntimeError

    failure = failure_from(raised(Hostile("x")))
    assert failure.message == "x"
    assert failure.traceback == "(the traceback can not be read: RuntimeError)"


def test_a_deep_recursion_is_cheap_and_keeps_both_ends() -> None:
    """Where it came in and where it ended are kept; a hundred thousand frames cost neither seconds nor megabytes."""

    def ping(depth: int) -> None:
        pong(depth - 1)

    def pong(depth: int) -> None:
        if depth < 0:
            raise OddError("deep")
        ping(depth - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    try:
        with pytest.raises(OddError) as caught:
            ping(20_000)
    finally:
        sys.setrecursionlimit(limit)
    began = time.monotonic()
    failure = failure_from(caught.value)
    assert time.monotonic() - began < 2
    assert_storable(failure)
    assert failure.traceback is not None
    assert "in test_a_deep_recursion_is_cheap_and_keeps_both_ends" in failure.traceback
    assert 'raise OddError("deep")' in failure.traceback
    assert "frames left out …" in failure.traceback


def test_causes_and_contexts_are_told_in_order() -> None:
    """What led to the error stands before it, as Python prints it; a context that was suppressed does not."""

    def handler() -> None:
        try:
            try:
                raise ValueError("first")
            except ValueError:
                raise KeyError("second")  # noqa: B904 - the implicit context is what is tested.
        except KeyError as error:
            raise OddError("third") from error

    traceback = failure_of(handler).traceback
    assert traceback is not None
    places = [
        traceback.index(part)
        for part in (
            "ValueError: first",
            "During handling of the above exception, another exception occurred:",
            "KeyError: 'second'",
            "The above exception was the direct cause of the following exception:",
            "OddError: third",
        )
    ]
    assert places == sorted(places)

    def silent() -> None:
        try:
            raise ValueError("first")
        except ValueError:
            raise OddError("second") from None

    assert "first" not in (failure_of(silent).traceback or "").split("OddError")[-1]
    assert "ValueError: first" not in (failure_of(silent).traceback or "")


def test_a_long_chain_is_bounded() -> None:
    """Of thousands of errors that led to one another, the first and the last are told."""
    error: BaseException = ValueError("root")
    for number in range(5_000):
        later = ValueError(f"number {number}")
        later.__context__ = error
        error = later
    failure = failure_from(error)
    assert_storable(failure)
    assert failure.traceback is not None
    assert failure.traceback.startswith("ValueError: root")
    assert failure.traceback.endswith("ValueError: number 4999\n")
    assert "… 4,991 errors left out …" in failure.traceback


def test_a_chain_that_bites_its_tail_ends() -> None:
    """Two errors that are each other's cause are told once each."""
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    traceback = failure_from(first).traceback
    assert traceback is not None
    assert traceback.count("ValueError: ") == 2


def test_groups_tell_their_members() -> None:
    """The members of an exception group are told, the first of very many, and not endlessly deep."""
    group = ExceptionGroup("several", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])])
    traceback = failure_from(raised(group)).traceback
    assert traceback is not None
    for part in ("ExceptionGroup: several (2 sub-exceptions)", "| ValueError: one", "|   | KeyError: 'two'", "+-- 1 of 2 --"):
        assert part in traceback
    many = ExceptionGroup("many", [ValueError("\0" * 3_000) for _ in range(1_000)])
    assert "995 errors left out" in (failure_from(many).traceback or "")
    deep: Exception = ValueError("x")
    for _ in range(50):
        deep = ExceptionGroup("deep", [deep])
    assert_storable(failure_from(deep))


def test_notes_are_told() -> None:
    """What was added with `add_note` follows the message."""
    error = ValueError("x")
    error.add_note("order 7")
    assert failure_from(error).traceback == "ValueError: x\norder 7\n"

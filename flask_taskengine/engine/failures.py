"""What is kept of an error: text that any database can store, however odd or large the error is."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType

from ..domain.outcome import Failure

MESSAGE_LIMIT = 2_000
"""Characters of an error's message."""
TRACEBACK_LIMIT = 16_000
"""Characters of a traceback; four bytes each still fit MySQL's TEXT."""
_CLASS_LIMIT = 255
_FIRST_FRAMES, _LAST_FRAMES = 10, 30
_FIRST_ERRORS, _LAST_ERRORS = 5, 5
_GROUP_ERRORS, _GROUP_DEPTH = 5, 3

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def failure_from(error: BaseException) -> Failure:
    """Describe an error; never raises, whatever the error's own methods do."""
    try:
        told = "".join(_chain(error))
    except Exception as broken:  # noqa: BLE001 - the failure itself must never be lost because its story can not be told.
        told = f"(the traceback can not be read: {type(broken).__qualname__})"
    return Failure(
        clean_text(_class_name(error), _CLASS_LIMIT), clean_text(_message(error), MESSAGE_LIMIT), clean_text(told, TRACEBACK_LIMIT)
    )


def clean_text(text: str, limit: int) -> str:
    r"""Make text storable: shortened in its middle to ``limit`` characters; NUL and lone surrogates become ``\x00``, ``\udc80``."""
    text = _shortened(text, limit)
    if "\0" not in text and (text.isascii() or _is_utf8(text)):
        return text
    return _shortened(text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode(), limit)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    mark = f"\n… {len(text) - limit:,} characters left out …\n"
    room = limit - len(mark)
    if room <= 0:
        return text[:limit]
    head = room // 2
    return text[:head] + mark + text[len(text) - (room - head) :]


def _class_name(error: BaseException) -> str:
    kind = type(error)
    module = kind.__module__
    # The engine's own errors are known by their public name, not by the module that happens to define them.
    if module == "builtins" or str(module).split(".")[0] == "flask_taskengine":
        return kind.__qualname__
    return f"{module}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))
    except Exception as broken:  # noqa: BLE001 - the error's own __str__ is the host's code.
        return f"(its message can not be read: __str__ raised {type(broken).__qualname__})"


# --- the traceback: bounded before it is formatted, since formatting a deep recursion costs seconds and megabytes ------------


def _chain(error: BaseException, depth: int = 0) -> Iterator[str]:
    """Yield the text of an error and of those that led to it, the oldest first, as Python prints them."""
    story = _story(error)
    if len(story) > _FIRST_ERRORS + _LAST_ERRORS:
        left_out = len(story) - _FIRST_ERRORS - _LAST_ERRORS
        first, last = story[:_FIRST_ERRORS], story[-_LAST_ERRORS:]
    else:
        left_out, first, last = 0, story, []
    for one, link in first:
        yield from _single(one, depth)
        yield link
    if left_out:
        yield f"… {left_out:,} errors left out …\n\n"
    for one, link in last:
        yield from _single(one, depth)
        yield link


def _story(error: BaseException) -> list[tuple[BaseException, str]]:
    """Return the errors that led here, the oldest first, each with the words that lead to the next."""
    story = [(error, "")]
    seen = {id(error)}
    while True:
        if error.__cause__ is not None:
            earlier, link = error.__cause__, _CAUSE
        elif error.__context__ is not None and not error.__suppress_context__:
            earlier, link = error.__context__, _CONTEXT
        else:
            break
        if id(earlier) in seen:
            break
        seen.add(id(earlier))
        story.append((earlier, link))
        error = earlier
    return story[::-1]


def _single(error: BaseException, depth: int) -> Iterator[str]:
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from _frames(error.__traceback__)
    message = clean_text(_message(error), MESSAGE_LIMIT)
    yield f"{_class_name(error)}: {message}\n" if message else f"{_class_name(error)}\n"
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, str):
            yield f"{_shortened(note, MESSAGE_LIMIT)}\n"
    if isinstance(error, BaseExceptionGroup):
        yield from _members(error, depth + 1)


def _members(group: BaseExceptionGroup[BaseException], depth: int) -> Iterator[str]:
    shown = group.exceptions[:_GROUP_ERRORS] if depth <= _GROUP_DEPTH else ()
    for number, member in enumerate(shown, 1):
        yield f"  +-- {number} of {len(group.exceptions)} --\n"
        for line in "".join(_chain(member, depth)).splitlines(keepends=True):
            yield f"  | {line}"
    if len(group.exceptions) > len(shown):
        yield f"  +-- {len(group.exceptions) - len(shown):,} errors left out --\n"


def _frames(first: TracebackType) -> list[str]:
    steps = list(traceback.walk_tb(first))
    left_out = len(steps) - _FIRST_FRAMES - _LAST_FRAMES
    if left_out <= 0:
        return traceback.StackSummary.extract(iter(steps)).format()
    return [
        *traceback.StackSummary.extract(iter(steps[:_FIRST_FRAMES])).format(),
        f"  … {left_out:,} frames left out …\n",
        *traceback.StackSummary.extract(iter(steps[-_LAST_FRAMES:])).format(),
    ]

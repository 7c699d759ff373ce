"""How the commands write for people: aligned tables, local times with their age, durations in a word."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from ..engine.presentation import printable

_GAP = "  "
_UNITS = ((172_800, 86400, "d"), (7200, 3600, "h"), (120, 60, "m"))


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], numbers: Collection[str] = ()) -> str:
    """Write rows below their headers; the columns in ``numbers`` are aligned at the right. No cell is cut or wrapped."""
    cells = [[printable(str(cell), keep="") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    right = [header in numbers for header in headers]

    def line(row: Sequence[str]) -> str:
        padded = (cell.rjust(width) if at_right else cell.ljust(width) for cell, width, at_right in zip(row, widths, right, strict=True))
        return _GAP.join(padded).rstrip()

    return "\n".join(line(row) for row in (headers, *cells))


def listing(pairs: Iterable[tuple[str, str]]) -> str:
    """Write names and their values; further lines of a value stand below its first."""
    shown = [(name, printable(value)) for name, value in pairs]
    width = max(len(name) for name, _ in shown)
    indent = "\n" + " " * width + _GAP
    return "\n".join(f"{name.ljust(width)}{_GAP}{indent.join(value.splitlines())}".rstrip() for name, value in shown)


def moment(when: datetime | None, now: datetime) -> str:
    """Write a time in the zone of this machine, and how far it is from now."""
    if when is None:
        return "-"
    away = (now - when).total_seconds()
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S} ({f'{span(away)} ago' if away >= 0 else f'in {span(-away)}'})"


def span(seconds: float) -> str:
    """Write a duration in its largest sensible unit."""
    for least, size, unit in _UNITS:
        if seconds >= least:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"

"""Numbers with names in memory that forked processes share: one process writes, others read, and they outlive the writer."""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Iterator

_ENTRY = struct.Struct("HH")
"""Bytes of the name, and how many numbers it has."""
_NUMBERS = 65_536
_NAMES = 2**20
"""Bytes for the names; memory is taken only as it is used."""


class Cells:
    """Made before the fork by the process that reads; written by one child at a time, from any of its threads.

    What was counted stays when the child dies, and the child that gets them next goes on from there.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 + 8 * _NUMBERS + _NAMES)
        whole = memoryview(self._memory)
        self._known = whole[:8].cast("Q")
        """How many names there are."""
        self._numbers = whole[8 : 8 + 8 * _NUMBERS].cast("d")
        self._names = whole[8 + 8 * _NUMBERS :]
        self.begin()

    def begin(self) -> None:
        """Take over as the process that writes, after the fork."""
        self._lock = threading.Lock()
        self._places: dict[str, int] = {}
        self._next = self._end = 0
        for name, place, width in self._directory():
            self._places[name] = place
            self._next = place + width
            self._end += _ENTRY.size + len(name.encode())

    def place(self, name: str, width: int = 1) -> int | None:
        """Return the place of the first number with a name, new ones being 0; None where there is no room for more."""
        with self._lock:
            place = self._places.get(name)
            return self._append(name, width) if place is None else place

    def add(self, place: int, by: float = 1.0) -> None:
        """Add to one number."""
        with self._lock:
            self._numbers[place] += by

    def add_both(self, place: int, by: float, other: int, other_by: float) -> None:
        """Add to two numbers."""
        with self._lock:
            self._numbers[place] += by
            self._numbers[other] += other_by

    def put(self, place: int, value: float) -> None:
        """Write one number."""
        self._numbers[place] = value

    def read(self) -> dict[str, list[float]]:
        """Return the numbers by their names."""
        return {name: list(self._numbers[place : place + width]) for name, place, width in self._directory()}

    def _append(self, name: str, width: int) -> int | None:
        encoded = name.encode()
        place, begin = self._next, self._end + _ENTRY.size
        if place + width > _NUMBERS or begin + len(encoded) > _NAMES:
            return None
        _ENTRY.pack_into(self._names, self._end, len(encoded), width)
        self._names[begin : begin + len(encoded)] = encoded
        # Last, so that whoever reads meanwhile, or follows a writer that was killed here, sees a name whole or not at all.
        self._known[0] += 1
        self._places[name] = place
        self._next, self._end = place + width, begin + len(encoded)
        return place

    def _directory(self) -> Iterator[tuple[str, int, int]]:
        end = place = 0
        for _ in range(self._known[0]):
            length, width = _ENTRY.unpack_from(self._names, end)
            begin = end + _ENTRY.size
            yield bytes(self._names[begin : begin + length]).decode(), place, width
            end, place = begin + length, place + width

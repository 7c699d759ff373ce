"""A number that forked processes share."""

from __future__ import annotations

import mmap
import struct

_NUMBER = struct.Struct("d")


class SharedNumber:
    """A float in a page of anonymous memory: who makes it and then forks can read what the child writes, and the other way round.

    Reading and writing are single copies of eight aligned bytes: no lock, nothing to inherit but the page.
    """

    def __init__(self, value: float = 0.0) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self.value = value

    @property
    def value(self) -> float:
        number: float = _NUMBER.unpack_from(self._page)[0]
        return number

    @value.setter
    def value(self, value: float) -> None:
        _NUMBER.pack_into(self._page, 0, value)

    def close(self) -> None:
        """Give the page back; other processes keep theirs."""
        self._page.close()

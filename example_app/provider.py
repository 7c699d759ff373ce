"""Stands for a payment provider: another company, whose service fails now and then, and which keeps books of its own."""

from __future__ import annotations

import zlib
from pathlib import Path

MOST_FAILURES = 2


class ProviderUnavailable(Exception):
    """The provider did not answer. Nothing was charged; the same request may be made again."""


def charge(folder: str, key: str, cents: int) -> str:
    """Charge an amount, once for each key, however often it is asked for; return the number of the receipt.

    Raises:
        ProviderUnavailable: how often that happens depends on the key: 0 to ``MOST_FAILURES`` times.
    """
    number = zlib.crc32(key.encode())
    books = Path(folder) / "provider"
    books.mkdir(exist_ok=True)
    with (books / f"{number:08x}.requests").open("a+") as requests:
        requests.write(f"{key} {cents}\n")
        requests.seek(0)
        asked = len(requests.readlines())
    if asked <= number % (MOST_FAILURES + 1):
        raise ProviderUnavailable("503 Service Unavailable: try again later")
    return f"R-{number:08x}"

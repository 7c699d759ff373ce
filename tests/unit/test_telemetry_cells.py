"""Numbers in shared memory, and the line over which events are passed on."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from flask_taskengine.runtime import cells as cells_module
from flask_taskengine.runtime.cells import Cells
from flask_taskengine.runtime.channel import Channel
from flask_taskengine.telemetry.probe import address_of


def test_numbers_are_kept_by_name() -> None:
    """Each name has as many numbers as were asked for, beginning at 0."""
    cells = Cells()
    one, many = cells.place("one"), cells.place("many", 3)
    assert one is not None
    assert many is not None
    cells.add(one)
    cells.add_both(many, 2.0, many + 2, 0.5)
    cells.put(many + 1, 7.0)
    assert cells.read() == {"one": [1.0], "many": [2.0, 7.0, 0.5]}
    assert cells.place("one") == one


def test_the_next_writer_goes_on() -> None:
    """Who takes over finds the names that are there, and adds to them."""
    cells = Cells()
    place = cells.place("höhe")
    assert place is not None
    cells.add(place, 2)
    cells.begin()
    assert cells.place("höhe") == place
    cells.add(place, 3)
    other = cells.place("other")
    assert other is not None
    assert cells.read() == {"höhe": [5.0], "other": [0.0]}


def test_another_process_writes_and_dies() -> None:
    """What it has written is there, though it was killed."""
    cells = Cells()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        cells.begin()
        place = cells.place("of the child")
        assert place is not None
        cells.add(place, 3)
        os.write(writer, b"x")
        os.kill(os.getpid(), 9)
    assert os.read(reader, 1) == b"x"
    os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)
    assert cells.read() == {"of the child": [3.0]}


def test_threads_lose_nothing() -> None:
    """Many threads may add to the same number."""
    cells = Cells()
    place = cells.place("n")
    assert place is not None

    def add() -> None:
        for _ in range(5000):
            cells.add(place)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cells.read() == {"n": [20_000.0]}


def test_no_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is refused, and what is there stays."""
    monkeypatch.setattr(cells_module, "_NUMBERS", 4)
    cells = Cells()
    assert cells.place("a", 3) == 0
    assert cells.place("b", 2) is None
    assert cells.place("c", 1) == 3
    assert set(cells.read()) == {"a", "c"}


def test_a_line_that_is_full_loses_nothing() -> None:
    """What the other end has no room for is sent later, whole and in order."""
    one, other = Channel.pair()
    one._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for number in range(500):
        one.send(number=number, text="x" * 200)
    assert one.holds_back is True
    received: list[int] = []
    while len(received) < 500:
        received += [message["number"] for message in other.receive()]
        one.flush()
    assert received == list(range(500))
    one.send(last=True)
    assert other.receive() == [{"last": True}]
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [("9100", ("", 9100)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), (" worker-1:9100 ", ("worker-1", 9100))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """A port, or a host and a port."""
    assert address_of(text) == address

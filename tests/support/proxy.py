"""A small TCP proxy, behind which a network can lose everything without a word."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Passes bytes on to a port of 127.0.0.1, until told to lose them.

    A connection that was open while bytes were lost stays half-open for ever: both ends believe in it, nothing arrives. While
    bytes are lost, new connections are accepted and stay silent; afterwards new ones work again.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._losing = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def lose(self) -> None:
        """Lose every byte of the connections that are open or are opened from now on."""
        with self._lock:
            self._losing = True

    def mend(self) -> None:
        """Let new connections work; the old ones stay half-open."""
        with self._lock:
            self._losing = False

    def reset(self) -> None:
        """Close every connection at both ends."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            lost = threading.Event()
            with self._lock:
                self._sockets.append(client)
                if self._losing:
                    continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets.append(server)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target, lost), name="proxy-line", daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, lost: threading.Event) -> None:
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            if self._losing:
                lost.set()
            if lost.is_set():
                if data:
                    continue
                return
            try:
                if data:
                    target.sendall(data)
                    continue
                target.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            return

"""A node's place in the cluster: one start of one process, registered, beating, and replaced when its lease is lost."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from typing import Any

from ..store import nodes
from .database import Database
from .loop import Loop


class Membership:
    """Registers the node, and again under a new name whenever its lease was lost; ``id`` is the current name.

    Args:
        label: what people call it (``--node-id``).
        describe: returns the types and limits to write into the row.
        joined: called with each new name, once it is registered.
    """

    def __init__(
        self,
        database: Database,
        *,
        label: str | None,
        concurrency: int,
        describe: Callable[[], tuple[Collection[str], Mapping[str, Mapping[str, int]]]],
        joined: Callable[[str], None],
    ) -> None:
        self._database = database
        self._host_name = socket.gethostname()
        self.label = label or self._host_name
        self._concurrency = concurrency
        self._describe = describe
        self._joined = joined
        self._loop = Loop("membership", self._run_once)
        self._line = database.line()
        self._wanted = threading.Event()
        self._wanted.set()
        self.registered = threading.Event()
        self.id = self._new_id()

    def start(self) -> None:
        self._loop.start()

    def lost(self, node: str) -> bool:
        """Take note that the lease of a name is lost; return whether it was the current one."""
        if node != self.id:
            return False
        self.registered.clear()
        self.id = self._new_id()
        self._wanted.set()
        self._loop.wake()
        return True

    def leave(self) -> None:
        """Remove the row: the node has ended and runs nothing any more."""
        self._loop.stop()
        if self.registered.is_set():
            with self._line.statement() as connection:
                nodes.remove(connection, self._database.tables, [self.id])
        self._line.close()

    def _run_once(self) -> None:
        if not self._wanted.is_set():
            return
        self._wanted.clear()
        name = self.id
        try:
            with self._line.statement() as connection:
                nodes.register(connection, self._database.tables, self._row(name))
            # Needed again only when the node is lost or leaves.
            self._line.close()
        except BaseException:
            # Whether the row was written is not known: the next try takes another name.
            self.id = self._new_id()
            self._wanted.set()
            raise
        self._joined(name)
        self.registered.set()

    def _row(self, name: str) -> dict[str, Any]:
        types, limits = self._describe()
        return {
            "id": name,
            "label": self.label,
            "host": self._host_name,
            "pid": os.getpid(),
            "version": version("flask-taskengine"),
            "concurrency": self._concurrency,
            "types": types,
            "limits": limits,
        }

    def _new_id(self) -> str:
        return f"{self.label[:120]}:{os.getpid()}:{secrets.token_hex(4)}"

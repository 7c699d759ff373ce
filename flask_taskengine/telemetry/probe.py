"""``--probe``: what a worker shows to an orchestrator and to Prometheus, by HTTP, from a process beside those that run tasks."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..domain.errors import ConfigError
from ..runtime.cells import Cells
from ..runtime.host import Host
from ..runtime.lookout import Sight

_BACKLOG = 64
_CLIENT_PATIENCE = 10.0
"""Seconds that a client has for its request."""
_JSON = "application/json"

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type and body."""


def address_of(text: str) -> tuple[str, int]:
    """Read ``PORT`` or ``HOST:PORT``; without a host it is every address of the machine.

    Raises:
        ValueError: it is neither.
    """
    match = re.fullmatch(r"(?:(?P<host>[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):)?(?P<port>[0-9]{1,5})", text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{text!r} is no address: give a port, such as 9100, or HOST:PORT")
    return (match["host"] or "").strip("[]"), int(match["port"])


class Probe:
    """Answers ``/live``, ``/ready`` and, where metrics are on, ``/metrics``. Listens as soon as it is made.

    Raises:
        ConfigError: the address can not be had.
    """

    def __init__(self, host: Host, address: tuple[str, int]) -> None:
        self._host = host
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(address)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            where = f"{address[0] or '*'}:{address[1]}"
            raise ConfigError([f"--probe can not listen on {where} ({error.strerror}): give a free port of this machine"]) from error

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._socket.getsockname()[1]
        return port

    def enter(self, cells: Cells) -> None:
        """In a process that runs tasks: count there, and not in the registry of that process, which nobody would see."""
        if self._host.settings.metrics:
            from .metrics import counting_of
            from .worker_metrics import CellRecorder

            counting_of(self._host).record_in(CellRecorder(cells))

    def leave(self) -> None:
        """Close the port in a process that does not serve."""
        self._socket.close()

    def serve(self, sight: Sight) -> None:
        """Answer, until the process is killed."""
        answers: dict[str, Callable[[str], Answer]] = {
            "/live": lambda _: _status(sight, up=sight.live()),
            "/ready": lambda _: _status(sight, up=sight.ready()),
            "/metrics": _metrics_of(self._host, sight) if self._host.settings.metrics else _no_metrics,
        }
        server = _Server(("", 0), _handler(answers), bind_and_activate=False)
        server.socket.close()
        server.socket = self._socket
        server.serve_forever()


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def _handler(answers: dict[str, Callable[[str], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_PATIENCE
        server_version = "Flask-TaskEngine"
        sys_version = ""

        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            if answer is None:
                status, kind, body = HTTPStatus.NOT_FOUND, "text/plain", f"there are {', '.join(answers)}\n".encode()
            else:
                status, kind, body = answer(self.headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - as above

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as above
            """Say nothing: a probe every second would fill the log."""

    return Handler


def _status(sight: Sight, *, up: bool) -> Answer:
    processes = [{"pid": int(desk.pid.value), "ready": bool(desk.ready.value)} for desk in sight.desks if desk.pid.value]
    body = json.dumps({"status": "UP" if up else "DOWN", "processes": processes}).encode()
    return HTTPStatus.OK if up else HTTPStatus.SERVICE_UNAVAILABLE, _JSON, body


def _metrics_of(host: Host, sight: Sight) -> Callable[[str], Answer]:
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    from .counting import Types
    from .queue import QueueCollector
    from .worker_metrics import CellCollector

    registry, queues = CollectorRegistry(), QueueCollector()
    queues.add(host, Types(host.registry))
    registry.register(CellCollector(sight.desks))
    registry.register(queues)

    def answer(accept: str) -> Answer:
        encode, kind = choose_encoder(accept)
        return HTTPStatus.OK, kind, encode(registry)

    return answer


def _no_metrics(accept: str) -> Answer:
    return HTTPStatus.NOT_FOUND, "text/plain", b"TASKENGINE_METRICS is off: set it to True, then metrics are shown here\n"

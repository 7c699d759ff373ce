"""Serve the host in ``supervised`` by a server that nobody knows."""

from __future__ import annotations

from wsgiref.simple_server import make_server

from tests.functional.supervised import create_app

if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, create_app())
    print(f"listening at http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201 - the test reads it
    server.serve_forever()

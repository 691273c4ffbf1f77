"""The operator's HTTP port: `/metrics` for Prometheus, `/healthz` for the kubelet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


def start_endpoint(
    host: str, port: int, registry: CollectorRegistry, is_alive: Callable[[], bool]
) -> ThreadingHTTPServer:
    """Serve metrics and health from a thread; the caller shuts the server down.

    Args:
        host: address to listen on.
        port: 0 takes a free one.
        registry: what `/metrics` shows.
        is_alive: whether `/healthz` says 200 or 503.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif self.path == "/healthz":
                alive = is_alive()
                code = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(code, "text/plain", b"ok\n" if alive else b"the event loop is stuck\n")
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"try /metrics or /healthz\n")

        def _answer(self, code: HTTPStatus, content_type: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a probe every few seconds is no news."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="endpoint", daemon=True).start()
    return server

"""Each rank's own small HTTP server: its metrics, how it is, and where its loop stands. It knows no loop and no API."""

from __future__ import annotations

import http.server
import json
import logging
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from lockstep_worker import contract
from lockstep_worker.health.hang import HangDetector
from lockstep_worker.health.readiness import Readiness
from lockstep_worker.phase import Standing

log = logging.getLogger(__name__)


class _HttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    """All peers ask in the same moment when they notice a hang; none may be turned away."""

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away before its answer is no fault of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class RankServer:
    """Serves `/metrics` and `/healthz` from a daemon thread of its own.

    Args:
        registry: whose metrics are served.
        readiness: the rank's state; 200 while it is able to step, else 503.
        detector: says how long ago the last progress was.
        standing: says where the loop stands, without locks.
        rank: this rank.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.

    Raises:
        OSError: the port is taken.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        readiness: Readiness,
        detector: HangDetector,
        standing: Callable[[], Standing],
        *,
        rank: int,
        host: str,
        port: int,
    ) -> None:
        self._registry, self._readiness, self._detector = registry, readiness, detector
        self._rank, self._standing = rank, standing
        self._http = _HttpServer((host, port), _handler_for(self._answer))
        self._thread = threading.Thread(target=self._http.serve_forever, name="rank-server", daemon=True)

    @property
    def host(self) -> str:
        """The address that it listens on, as numbers."""
        return str(self._http.server_address[0])

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._http.server_address[1])

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        if path == contract.METRICS_PATH:
            encode, content_type = choose_encoder(accept)
            return HTTPStatus.OK, content_type, encode(self._registry)
        if path == contract.RANK_HEALTH_PATH:
            status = HTTPStatus.OK if self._readiness.healthy else HTTPStatus.SERVICE_UNAVAILABLE
            return status, "application/json", json.dumps(self._health()).encode()
        return HTTPStatus.NOT_FOUND, "text/plain", b"not found\n"

    def _health(self) -> dict[str, object]:
        standing = self._standing()
        return {
            "rank": self._rank,
            "state": self._readiness.state.value,
            "secondsSinceProgress": self._detector.seconds_since_progress(),
            "paused": self._detector.paused,
            "step": standing.step,
            "phase": standing.phase.label,
        }


def _handler_for(
    answer: Callable[[str, str], tuple[HTTPStatus, str, bytes]],
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10
        """Seconds after which a silent client loses its thread."""

        def do_GET(self) -> None:
            status, content_type, body = answer(urlsplit(self.path).path, self.headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            log.debug(format, *args)

    return Handler

"""Speaks to a launcher about its drain, by HTTP. A launcher that does not answer says nothing, not an error."""

from __future__ import annotations

import json
import logging

import urllib3

from lockstep_operator.groups.state import Drain
from lockstep_worker.contract import DRAIN_PATH, HTTP_PORT

logger = logging.getLogger(__name__)
TIMEOUT = urllib3.Timeout(connect=1, read=2)


class Launchers:
    """Asks launchers to drain and how far they are.

    Args:
        port: where launchers listen.
    """

    def __init__(self, port: int = HTTP_PORT) -> None:
        self._port = port
        self._pool = urllib3.PoolManager(retries=False)

    def start_drain(self, address: str) -> None:
        """Ask a launcher to take no more requests; asking again is harmless."""
        self._call("POST", address)

    def read_drain(self, address: str) -> Drain | None:
        """Ask a launcher how far its drain is; None when it does not say."""
        body = self._call("GET", address)
        try:
            answer = json.loads(body or b"")
            return Drain(draining=bool(answer["draining"]), in_flight=int(answer["in_flight"]))
        except (ValueError, KeyError, TypeError):
            return None

    def _call(self, method: str, address: str) -> bytes | None:
        host = f"[{address}]" if ":" in address else address
        try:
            response = self._pool.request(method, f"http://{host}:{self._port}{DRAIN_PATH}", timeout=TIMEOUT)
        except urllib3.exceptions.HTTPError as error:
            logger.info("the launcher at %s does not answer about its drain: %s", address, error)
            return None
        return response.data if response.status < 400 else None

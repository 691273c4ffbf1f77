"""The part of a kubelet's own API that `kubectl logs` needs, and the TLS that the API server expects of it.

Knows where log files are; asks the agent only whether a container still runs.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from devcluster.agent.decisions.node import KUBELET_PORT

POLL_S = 0.2
CHUNK_BYTES = 64 * 1024

IsRunning = Callable[[str, str, str], bool]
"""(namespace, pod, container) -> whether its log can still grow."""


class LogServer:
    """Serves `/containerLogs/<namespace>/<pod>/<container>` on every node's address."""

    def __init__(self, state_dir: Path, is_running: IsRunning) -> None:
        self._state_dir = state_dir
        self._is_running = is_running
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, addresses: list[str]) -> None:
        """Listen on the kubelet's port of each address."""
        await self._runner.setup()
        context = _own_certificate(self._state_dir / "kubelet")
        for address in addresses:
            await web.TCPSite(self._runner, address, KUBELET_PORT, ssl_context=context).start()

    async def stop(self) -> None:
        """Close all connections."""
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Send a log's end, or all of it, and with `follow` what comes until the container ends."""
        namespace, pod, container = (request.match_info[key] for key in ("namespace", "pod", "container"))
        path = self._state_dir / "logs" / namespace / pod / f"{container}.log"
        if not path.is_file():
            return web.Response(status=404, text=f"container {container} of pod {namespace}/{pod} has no log yet")
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        with path.open("rb") as log:
            lines = request.query.get("tailLines")
            if lines is not None:
                log.seek(tail_offset(path, int(lines)))
            while True:
                # Asked before the reading: what is written until the end must not be missed.
                goes_on = request.query.get("follow") == "true" and self._is_running(namespace, pod, container)
                while chunk := log.read(CHUNK_BYTES):
                    await response.write(chunk)
                if not goes_on:
                    break
                await asyncio.sleep(POLL_S)
        await response.write_eof()
        return response


def tail_offset(path: Path, lines: int) -> int:
    """Find where the last `lines` lines of a file begin, in bytes."""
    content = path.read_bytes()
    position = len(content)
    for _ in range(lines + (0 if not content.endswith(b"\n") else 1)):
        position = content.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1


def _own_certificate(directory: Path) -> ssl.SSLContext:
    """Make a certificate that nobody signed: the API server does not ask a kubelet for more, and sees only this one."""
    directory.mkdir(parents=True, exist_ok=True)
    key, certificate = directory / "kubelet.key", directory / "kubelet.crt"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    files = ["-subj", "/CN=node-agent", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *kind, *files], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context

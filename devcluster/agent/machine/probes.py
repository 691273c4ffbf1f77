"""Probes and hooks: one check of a container from the node's side, and (pure) what a row of checks means."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx

from devcluster.agent.machine.processes import ContainerProcess
from devcluster.kube.objects import Object


@dataclass(frozen=True, slots=True)
class Target:
    """Where a container is reached; `ports` are its named ports."""

    address: str
    ports: dict[str, int]
    process: ContainerProcess

    def port(self, value: int | str) -> int:
        """Resolve a port number or a port's name; a name that no port has is port 0, which nobody serves."""
        return self.ports.get(value, 0) if isinstance(value, str) and not value.isdigit() else int(value)


class ProbeTracker:
    """Turns single results into a verdict by the probe's thresholds."""

    def __init__(self, probe: Object, *, healthy: bool) -> None:
        self.healthy = healthy
        self._needed = {True: int(probe.get("successThreshold", 1)), False: int(probe.get("failureThreshold", 3))}
        self._last: bool | None = None
        self._row = 0

    def observe(self, success: bool) -> bool:
        """Take one result in; returns whether a threshold was reached that gives the verdict `healthy`."""
        self._row = self._row + 1 if success == self._last else 1
        self._last = success
        if self._row < self._needed[success]:
            return False
        self.healthy = success
        return True


def named_ports(container: Object) -> dict[str, int]:
    """Map the names of a container's ports to numbers."""
    return {port["name"]: port["containerPort"] for port in container.get("ports", []) if "name" in port}


async def check(handler: Object, target: Target, timeout_s: float) -> tuple[bool, str]:
    """Try a probe's or a hook's handler once.

    As with a kubelet, HTTP and TCP come from the node to the pod's address, so that a server on the pod's loopback
    does not count; commands run inside the container.

    Returns:
        Whether it succeeded, and what a reader of a failure wants to know.
    """
    if command := handler.get("exec"):
        code, output = await target.process.run(command["command"], timeout_s)
        return code == 0, output.strip()
    if request := handler.get("httpGet"):
        return await _check_http(request, target, timeout_s)
    if socket := handler.get("tcpSocket"):
        return await _check_tcp(socket.get("host") or target.address, target.port(socket["port"]), timeout_s)
    if pause := handler.get("sleep"):
        await asyncio.sleep(pause["seconds"])
        return True, ""
    return False, f"handler {sorted(handler)} is not one of exec, httpGet, tcpSocket, sleep"


async def _check_http(request: Object, target: Target, timeout_s: float) -> tuple[bool, str]:
    host, port = request.get("host") or target.address, target.port(request["port"])
    url = f"{request.get('scheme', 'HTTP').lower()}://{host}:{port}/{request.get('path', '/').lstrip('/')}"
    headers = {"User-Agent": "kube-probe/1.36", "Connection": "close"}
    headers |= {header["name"]: header["value"] for header in request.get("httpHeaders", [])}
    try:
        # A probe asks whether the server answers; whose certificate it shows is not its business.
        async with asyncio.timeout(timeout_s), httpx.AsyncClient(verify=False, trust_env=False) as client:
            response = await client.get(url, headers=headers, timeout=timeout_s, follow_redirects=True)
    except (httpx.HTTPError, TimeoutError) as error:
        return False, f"GET {url}: {error or type(error).__name__}"
    return response.status_code < httpx.codes.BAD_REQUEST, f"GET {url}: status {response.status_code}"


async def _check_tcp(host: str, port: int, timeout_s: float) -> tuple[bool, str]:
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except (OSError, TimeoutError) as error:
        return False, f"connect to {host}:{port}: {error or type(error).__name__}"
    return True, ""

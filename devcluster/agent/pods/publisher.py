"""Writes one pod's status when it changed, and deletes the pod's object when its processes are gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx

from devcluster.agent.decisions.status import PodView, build_pod_status
from devcluster.kube.client import JSON, STRATEGIC, ApiClient, ApiError
from devcluster.kube.clock import now
from devcluster.kube.objects import Object

RETRY_S = 1.0
GONE = frozenset({httpx.codes.NOT_FOUND, httpx.codes.CONFLICT})
"""Answers that say that the pod, or at least the one of this uid, is no more."""

log = logging.getLogger(__name__)


class PodObject:
    """One pod's object in the API; calls are tried again while the server is away.

    Attributes:
        is_mute: the object is gone, so that nothing is written any more.
    """

    def __init__(self, client: ApiClient, pod: Object) -> None:
        metadata = pod["metadata"]
        self.is_mute = False
        self._client = client
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._uid = metadata["uid"]

    async def write_status(self, status: Object) -> bool:
        """Merge the status in; False when the pod is gone."""
        body = {"metadata": {"uid": self._uid}, "status": status}
        return await self._call("PATCH", f"{self._path}/status", body, STRATEGIC)

    async def delete(self) -> None:
        """Remove the object for good, and no later pod of the same name."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self._uid}}
        await self._call("DELETE", self._path, body, JSON)

    async def _call(self, method: str, path: str, body: Object, content_type: str) -> bool:
        while not self.is_mute:
            try:
                await self._client.call(method, path, body, content_type=content_type)
                return True
            except ApiError as error:
                if error.status in GONE:
                    self.is_mute = True
                    break
                log.warning("%s %s: %s", method, path, error)
            except httpx.TransportError as error:
                log.info("%s %s: %s", method, path, error)
            await asyncio.sleep(RETRY_S)
        return False


class StatusPublisher:
    """Keeps one pod's status in the API equal to what `view` says."""

    def __init__(self, target: PodObject, pod: Object, view: Callable[[], PodView]) -> None:
        self._target = target
        self._view = view
        self._conditions = list(pod.get("status", {}).get("conditions", []))
        self._written: Object = {}
        self._wake = asyncio.Event()
        self._wake.set()

    def wake(self) -> None:
        """Say that the view may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Write every change, for ever."""
        while True:
            await self._wake.wait()
            await self.publish()

    async def publish(self) -> None:
        """Write the status now, unless it is written already."""
        self._wake.clear()
        status = build_pod_status(self._view(), self._conditions, now())
        if status != self._written and await self._target.write_status(status):
            self._written, self._conditions = status, status["conditions"]

"""Which pods are ours: watches all pods, runs those bound to our nodes, and keeps the nodes alive in the API."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx

from devcluster.agent.decisions.node import build_lease, build_node, build_node_status
from devcluster.agent.images import load_images
from devcluster.agent.machine import network
from devcluster.agent.machine.logs import LogServer
from devcluster.agent.pods.pod import NodeContext, PodLife
from devcluster.agent.pods.publisher import PodObject
from devcluster.agent.settings import NodeSettings, Settings
from devcluster.kube.client import MERGE, STRATEGIC, ApiClient, ApiError
from devcluster.kube.clock import now, now_micro
from devcluster.kube.objects import Object

HEARTBEAT_S = 10.0
SHUTDOWN_S = 10.0
PODS = "/api/v1/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

log = logging.getLogger(__name__)


class Kubelet:
    """The agent: several nodes, one watch of pods, one task per pod."""

    def __init__(self, settings: Settings, client: ApiClient) -> None:
        self._settings = settings
        self._client = client
        self._nodes: dict[str, NodeContext] = {}
        self._lives: dict[str, PodLife] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until cancelled, then end all pods."""
        await self._register_all()
        logs = LogServer(self._settings.state_dir, self._is_running)
        await logs.start([node.address for node in self._settings.nodes])
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._heartbeat())
                group.create_task(self._follow_pods())
        finally:
            await self._end_pods()
            await logs.stop()

    async def _register_all(self) -> None:
        shutil.rmtree(self._settings.state_dir / "pods", ignore_errors=True)
        await network.prepare_node([node.address for node in self._settings.nodes])
        images = load_images(self._settings.images)
        for index, node in enumerate(self._settings.nodes):
            allocatable = self._node_status(node)["allocatable"]
            self._nodes[node.name] = NodeContext(
                settings=node,
                addresses=network.AddressPool(node.pod_cidr),
                client=self._client,
                images=images,
                state_dir=self._settings.state_dir,
                dns=self._settings.dns,
                allocatable=allocatable,
            )
            await self._register(node, index)

    async def _register(self, node: NodeSettings, index: int) -> None:
        """Make the node's object, or bring an older one up to date."""
        wanted = build_node(node, index)
        try:
            await self._client.call("POST", "/api/v1/nodes", wanted)
        except ApiError as error:
            if error.status != httpx.codes.CONFLICT:
                raise
            labels = {"metadata": {"labels": wanted["metadata"]["labels"]}}
            await self._client.call("PATCH", f"/api/v1/nodes/{node.name}", labels, content_type=MERGE)
        await self._write_node_status(node)

    async def _write_node_status(self, node: NodeSettings) -> None:
        body = {"status": self._node_status(node)}
        await self._client.call("PATCH", f"/api/v1/nodes/{node.name}/status", body, content_type=STRATEGIC)

    def _node_status(self, node: NodeSettings) -> Object:
        return build_node_status(node, gpus=self._settings.gpus, memory_kib=_machine_memory_kib(), now=now())

    async def _heartbeat(self) -> None:
        """Renew the nodes' leases and status, so that the node controller takes them for alive."""
        while True:
            for node in self._settings.nodes:
                try:
                    await self._renew_lease(node.name)
                    await self._write_node_status(node)
                except (ApiError, httpx.TransportError) as error:
                    log.info("heartbeat of node %s: %s", node.name, error)
            await asyncio.sleep(HEARTBEAT_S)

    async def _renew_lease(self, name: str) -> None:
        lease = build_lease(name, now_micro())
        try:
            await self._client.call("PATCH", f"{LEASES}/{name}", lease, content_type=MERGE)
        except ApiError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            await self._client.call("POST", LEASES, lease)

    async def _follow_pods(self) -> None:
        async for kind, item in self._client.watch(PODS):
            if kind == "SYNC":
                self._sync(item["items"])
            elif kind == "DELETED":
                self._forget(item["metadata"]["uid"])
            else:
                self._take(item)

    def _sync(self, pods: list[Object]) -> None:
        """Take a whole list in: pods that are not in it are gone."""
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid in [uid for uid in self._lives if uid not in present]:
            self._forget(uid)
        for pod in pods:
            self._take(pod)

    def _take(self, pod: Object) -> None:
        uid, node = pod["metadata"]["uid"], self._nodes.get(pod["spec"].get("nodeName", ""))
        if node is None:
            return
        if uid in self._lives:
            self._lives[uid].update(pod)
        elif pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}:
            life = PodLife(pod, node)
            self._lives[uid] = life
            self._start(self._run_pod(uid, life))
        elif "deletionTimestamp" in pod["metadata"]:  # it ended under an earlier agent
            self._start(PodObject(self._client, pod).delete())

    def _is_running(self, namespace: str, pod: str, container: str) -> bool:
        return any(life.has_running(namespace, pod, container) for life in self._lives.values())

    def _forget(self, uid: str) -> None:
        if life := self._lives.get(uid):
            life.remove()

    async def _run_pod(self, uid: str, life: PodLife) -> None:
        try:
            await life.run()
        finally:
            self._lives.pop(uid, None)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a pod's task failed", exc_info=error)

    async def _end_pods(self) -> None:
        """End all pods' processes, in a hurry, and write nothing: the agent is going away."""
        for uid in list(self._lives):
            self._forget(uid)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SHUTDOWN_S)


def _machine_memory_kib() -> int:
    match = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    assert match is not None
    return int(match[1])

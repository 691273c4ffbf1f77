"""One pod's life: sandbox, volumes, init containers, containers, termination, deletion; its status on the way.

The only writer of its pod's status. Knows other objects only through `sources`; which pods exist is `kubelet`'s matter.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devcluster.agent.decisions import etc, volumes
from devcluster.agent.decisions.environment import Surroundings
from devcluster.agent.decisions.security import fs_group
from devcluster.agent.decisions.status import PodView, Terminated, Waiting
from devcluster.agent.errors import AgentError, ConfigError, UnsupportedPod
from devcluster.agent.images import Image, find_image
from devcluster.agent.machine import files, network
from devcluster.agent.machine.plan import PodFiles
from devcluster.agent.machine.processes import PauseProcess
from devcluster.agent.pods.container import RETRY_S, ContainerLife, PodSandbox
from devcluster.agent.pods.publisher import PodObject, StatusPublisher
from devcluster.agent.pods.sources import SourceReader
from devcluster.agent.settings import NodeSettings
from devcluster.kube.client import ApiClient
from devcluster.kube.clock import now
from devcluster.kube.objects import Object

REFRESH_S = 10.0
GONE_GRACE_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What a node offers to its pods."""

    settings: NodeSettings
    addresses: network.AddressPool
    client: ApiClient
    images: Mapping[str, Image]
    state_dir: Path
    dns: str
    allocatable: Mapping[str, str]


class PodLife:
    """Runs one pod from its binding to its deletion.

    `_stop` says that the containers are to end, `_deleted` that the object may go once they have; it is never set
    without `_stop`. The object goes last, when nothing of the pod is left on this machine but its logs.
    """

    def __init__(self, pod: Object, node: NodeContext) -> None:
        self._pod = pod
        self._node = node
        self._files = PodFiles(node.state_dir / "pods" / pod["metadata"]["uid"])
        self._logs = node.state_dir / "logs" / pod["metadata"]["namespace"] / pod["metadata"]["name"]
        self._reader = SourceReader(node.client, pod)
        self._stop = asyncio.Event()
        self._deleted = asyncio.Event()
        self._pause: PauseProcess | None = None
        self._address = ""
        self._view = PodView(pod["spec"].get("restartPolicy", "Always"), (), (), 0, node.settings.address, now())
        self._object = PodObject(node.client, pod)
        self._publisher = StatusPublisher(self._object, pod, self._current_view)
        self._init = self._lives("initContainers", is_init=True)
        self._main = self._lives("containers", is_init=False)

    def update(self, pod: Object) -> None:
        """Take the pod's newest form in."""
        self._pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._stop.set()
            self._deleted.set()

    def remove(self) -> None:
        """Take in that the pod's object is gone: end what still runs, and write nothing more."""
        self._object.is_mute = True
        self._stop.set()
        self._deleted.set()

    def has_running(self, namespace: str, name: str, container: str) -> bool:
        """Say whether a container of this name, in a pod of that name, may still write to its log."""
        metadata = self._pod["metadata"]
        if self._view.ended or (metadata["namespace"], metadata["name"]) != (namespace, name):
            return False
        statuses = [container.status for container in [*self._init, *self._main]]
        return any(status.name == container and not isinstance(status.state, Terminated) for status in statuses)

    async def run(self) -> None:
        """Run the pod until its object is deleted."""
        self.update(self._pod)
        publishing = asyncio.create_task(self._publisher.run())
        try:
            await self._run_containers()
        finally:
            publishing.cancel()
            await self._tear_down()
        await self._publisher.publish()
        await self._deleted.wait()
        await self._object.delete()

    async def _run_containers(self) -> None:
        """Work until all containers are done, or the pod is to stop."""
        work = asyncio.create_task(self._work())
        deadline = self._pod["spec"].get("activeDeadlineSeconds")
        stop = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({work, stop}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self._fail("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            if work not in done:
                self._stop.set()
                await asyncio.gather(*(container.stop(self._grace_s()) for container in [*self._init, *self._main]))
            await work
        except AgentError as error:
            log.warning("pod %s: %s", self._pod["metadata"]["name"], error)
            self._fail("Unsupported" if isinstance(error, UnsupportedPod) else "SandboxFailed", str(error))
        finally:
            # Only when the agent itself ends: the processes then go with it.
            for task in (work, stop):
                task.cancel()

    async def _work(self) -> None:
        volumes.check_pod(self._pod)
        sandbox = await self._make_sandbox()
        if not await self._until_possible(self._fill_volumes):
            return
        refreshing = asyncio.create_task(self._refresh_volumes())
        try:
            for container in self._init:
                await container.run(sandbox)
                if not isinstance(container.status.state, Terminated) or container.status.state.exit_code:
                    return
            if not self._stop.is_set():
                await asyncio.gather(*(container.run(sandbox) for container in self._main))
        finally:
            refreshing.cancel()

    async def _make_sandbox(self) -> PodSandbox:
        """Make the pod's files, namespaces and network."""
        pod, settings = self._pod, self._node.settings
        self._address = self._node.addresses.take()
        for directory in (self._files.etc, self._files.shm, self._files.volumes, self._logs):
            directory.mkdir(parents=True, exist_ok=True)
        for volume in pod["spec"].get("volumes", []):
            if "emptyDir" in volume:
                files.make_volume(self._files.volumes / volume["name"], fs_group(pod))
        hostname = etc.pod_hostname(pod)
        (self._files.etc / "hosts").write_text(etc.hosts_text(pod, self._address))
        (self._files.etc / "hostname").write_text(hostname + "\n")
        (self._files.etc / "resolv.conf").write_text(etc.resolver_text(pod, self._node.dns))
        self._pause = await PauseProcess.start(hostname, self._files.memory_mounts(pod))
        uid, gateway = pod["metadata"]["uid"], settings.gateway
        await network.connect_pod(uid, self._pause.pid, self._address, gateway, settings.address)
        self._change(pod_ip=self._address, sandboxed=True)
        return PodSandbox(self._files, self._logs, self._pause.pid, self._address, self._read_surroundings)

    async def _read_surroundings(self) -> Surroundings:
        sources = await self._reader.read()
        return Surroundings(self._pod, sources, self._address, self._node.settings.address, self._node.allocatable)

    async def _fill_volumes(self) -> None:
        around = await self._read_surroundings()
        for volume in self._pod["spec"].get("volumes", []):
            if volumes.is_filled(volume):
                content = volumes.volume_files(volume, around)
                files.write_volume(self._files.volumes / volume["name"], content, fs_group(self._pod))

    async def _refresh_volumes(self) -> None:
        """Bring changed ConfigMaps, Secrets and renewed tokens into the running pod."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self._fill_volumes()
            except ConfigError as error:
                log.info("pod %s keeps its files: %s", self._pod["metadata"]["name"], error)

    async def _until_possible(self, action: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Try until it works; False when the pod is to stop before that."""
        while not self._stop.is_set():
            try:
                await action()
                return True
            except ConfigError as error:
                for container in [*self._init, *self._main]:
                    container.status = replace(container.status, state=Waiting("ContainerCreating", str(error)))
                self._publisher.wake()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), RETRY_S)
        return False

    async def _tear_down(self) -> None:
        """Take away all that the pod had on this machine but its logs."""
        if self._pause is not None:
            await network.disconnect_pod(self._pod["metadata"]["uid"])
            await self._pause.stop()
        if self._address:
            self._node.addresses.free(self._address)
        await asyncio.to_thread(shutil.rmtree, self._files.root, ignore_errors=True)
        self._change(ended=True, sandboxed=False)

    def _lives(self, key: str, *, is_init: bool) -> list[ContainerLife]:
        policy = self._pod["spec"].get("restartPolicy", "Always")
        if is_init and policy == "Always":
            policy = "OnFailure"
        grace_s = self._pod["spec"].get("terminationGracePeriodSeconds", 30)
        return [
            ContainerLife(
                container,
                find_image(self._node.images, container["image"]),
                policy=policy,
                grace_s=grace_s,
                changed=self._publisher.wake,
            )
            for container in self._pod["spec"].get(key, [])
        ]

    def _grace_s(self) -> float:
        """How long the containers may take to end; an object that is already gone waits for nobody."""
        if self._object.is_mute:
            return GONE_GRACE_S
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        return float(metadata.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds", 30)))

    def _current_view(self) -> PodView:
        init, main = (tuple(container.status for container in group) for group in (self._init, self._main))
        return replace(self._view, init=init, main=main, generation=self._pod["metadata"].get("generation", 0))

    def _fail(self, reason: str, message: str) -> None:
        self._change(failure=(reason, message))

    def _change(self, **changes: Any) -> None:
        self._view = replace(self._view, **changes)
        self._publisher.wake()

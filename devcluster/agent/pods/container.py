"""One container's life: start, probes, end, restarts with back-off. Tells its pod about every change.

Knows its pod's surroundings, never the API server and never other containers.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devcluster.agent.decisions.environment import Surroundings
from devcluster.agent.decisions.security import fs_group
from devcluster.agent.decisions.status import (
    ContainerStatus,
    Running,
    Terminated,
    Waiting,
    restart_delay_s,
    should_restart,
)
from devcluster.agent.errors import AgentError, ConfigError
from devcluster.agent.images import Image
from devcluster.agent.machine.plan import PodFiles, build_plan, prepare_directories, read_message
from devcluster.agent.machine.probes import ProbeTracker, Target, check, named_ports
from devcluster.agent.machine.processes import ContainerProcess, tail
from devcluster.kube.clock import now
from devcluster.kube.objects import Object

RETRY_S = 2.0
FORGIVEN_AFTER_S = 600
MIN_GRACE_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodSandbox:
    """What a pod offers to its containers: its files, its namespaces, and fresh values from the API."""

    files: PodFiles
    logs: Path
    pause_pid: int
    pod_ip: str
    read_surroundings: Callable[[], Awaitable[Surroundings]]


class ContainerLife:
    """Runs one container until it is done or told to stop.

    `stop` may come at any moment, also while a process is being made that nobody can signal yet; so whoever made it
    looks at `_stop` once it can be signalled.

    Attributes:
        status: what the pod's status says about it.
    """

    def __init__(
        self, container: Object, image: Image, *, policy: str, grace_s: float, changed: Callable[[], None]
    ) -> None:
        self.status = ContainerStatus(container["name"], container["image"])
        self._container = container
        self._image = image
        self._policy = policy
        self._changed = changed
        self._target: Target | None = None
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()
        self._grace_s = grace_s
        self._in_a_row = 0

    async def run(self, sandbox: PodSandbox) -> None:
        """Run the container, again and again as its policy says."""
        while not self._stop.is_set():
            try:
                code = await self._run_once(sandbox)
            except AgentError as error:
                reason = error.reason if isinstance(error, ConfigError) else "CreateContainerError"
                self._set(state=Waiting(reason, str(error)))
                await self._sleep(RETRY_S)
                continue
            if self._stop.is_set() or not should_restart(self._policy, code):
                return
            await self._back_off()

    async def stop(self, grace_s: float) -> None:
        """End the container: its preStop hook, SIGTERM, then SIGKILL when `grace_s` is over."""
        self._grace_s = grace_s
        self._stop.set()
        await self._end(grace_s)

    async def _back_off(self) -> None:
        ended = self.status.state
        assert isinstance(ended, Terminated)
        delay = restart_delay_s(self._in_a_row)
        self._in_a_row += 1
        self._set(last=ended, restarts=self.status.restarts + 1)
        if delay:
            words = f"back-off {delay:g}s restarting failed container={self.status.name}"
            self._set(state=Waiting("CrashLoopBackOff", words))
            await self._sleep(delay)
            if self._stop.is_set():
                self._set(state=ended)

    async def _run_once(self, sandbox: PodSandbox) -> int:
        """Start the container and wait for its end; returns its exit code."""
        log_path = sandbox.logs / f"{self.status.name}.log"
        around = await sandbox.read_surroundings()
        plan = build_plan(self._container, around, self._image, sandbox.files, self.status.restarts)
        shutil.rmtree(plan.directory, ignore_errors=True)
        await asyncio.to_thread(prepare_directories, plan, self._image, sandbox.files, fs_group(around.pod))
        process = await ContainerProcess.start(plan, pause_pid=sandbox.pause_pid, log_path=log_path)
        began, started_at = time.monotonic(), now()
        target = Target(sandbox.pod_ip, named_ports(self._container), process)
        self._target, self._ended = target, asyncio.Event()
        self._set(state=Running(started_at), container_id=f"bubblewrap://{uuid.uuid4().hex}")
        watch = asyncio.create_task(self._watch(target))
        if self._stop.is_set():  # the order to stop came while it was being started
            watch.cancel()
            watch = asyncio.create_task(self._end(self._grace_s))
        code = await process.wait()
        self._ended.set()
        watch.cancel()
        if time.monotonic() - began > FORGIVEN_AFTER_S:
            self._in_a_row = 0
        self._finish(plan.directory, code, started_at, tail(log_path, 2048))
        await asyncio.to_thread(shutil.rmtree, plan.directory, ignore_errors=True)
        return code

    def _finish(self, directory: Path, code: int, started_at: str, log_tail: str) -> None:
        self._target = None
        message = read_message(self._container, directory, log_tail, code)
        reason = "Completed" if code == 0 else "Error"
        ended = Terminated(code, reason, message, started_at, now(), self.status.container_id)
        self._set(state=ended, ready=False, started=False)

    async def _watch(self, target: Target) -> None:
        """Run the start hook and the probes of one run, until it ends."""
        if hook := (self._container.get("lifecycle") or {}).get("postStart"):
            done, why = await check(hook, target, timeout_s=300)
            if not done:
                await self._fail("postStart hook", why)
                return
        if startup := self._container.get("startupProbe"):
            tracker = ProbeTracker(startup, healthy=False)
            if not await self._probe(startup, tracker, target, lambda _: True):
                await self._fail("startup probe", "")
                return
        self._set(started=True, ready="readinessProbe" not in self._container)
        async with asyncio.TaskGroup() as group:
            if readiness := self._container.get("readinessProbe"):
                group.create_task(
                    self._probe(readiness, ProbeTracker(readiness, healthy=False), target, self._set_ready)
                )
            if liveness := self._container.get("livenessProbe"):
                group.create_task(self._keep_alive(liveness, target))

    async def _keep_alive(self, probe: Object, target: Target) -> None:
        await self._probe(probe, ProbeTracker(probe, healthy=True), target, lambda healthy: not healthy)
        await self._fail("liveness probe", "", probe.get("terminationGracePeriodSeconds"))

    async def _probe(
        self, probe: Object, tracker: ProbeTracker, target: Target, decide: Callable[[bool], bool]
    ) -> bool:
        """Probe until `decide`, given a verdict, says that this is enough; returns the last verdict."""
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            success, why = await check(probe, target, probe.get("timeoutSeconds", 1))
            if not success:
                log.debug("%s: %s", self.status.name, why)
            if tracker.observe(success) and decide(tracker.healthy):
                return tracker.healthy
            await asyncio.sleep(probe.get("periodSeconds", 10))

    def _set_ready(self, ready: bool) -> bool:
        self._set(ready=ready)
        return False

    async def _fail(self, what: str, why: str, grace_s: float | None = None) -> None:
        """End a run that a probe or hook gave up; whether it starts again is the policy's business."""
        log.info("container %s: %s failed: %s", self.status.name, what, why)
        await self._end(self._grace_s if grace_s is None else grace_s)

    async def _end(self, grace_s: float) -> None:
        target, ended = self._target, self._ended
        if target is None:
            return
        until = time.monotonic() + grace_s
        if hook := (self._container.get("lifecycle") or {}).get("preStop"):
            await check(hook, target, max(grace_s, MIN_GRACE_S))
        target.process.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(ended.wait(), max(until - time.monotonic(), MIN_GRACE_S if grace_s else 0.1))
        except TimeoutError:
            target.process.signal(signal.SIGKILL)
            await ended.wait()

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but wake when told to stop."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    def _set(self, **changes: Any) -> None:
        fresh = replace(self.status, **changes)
        if fresh != self.status:
            self.status = fresh
            self._changed()

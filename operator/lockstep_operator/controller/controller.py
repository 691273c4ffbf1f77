"""The operator's running part: workers take keys from the queue and reconcile, and every failure is tried again."""

from __future__ import annotations

import asyncio
import logging
import time

from lockstep_operator.children.child import Child
from lockstep_operator.clients.kube import Kube
from lockstep_operator.controller.childwatch import start_child_watches
from lockstep_operator.controller.workqueue import WorkQueue
from lockstep_operator.errors import Conflict, KubeError
from lockstep_operator.groups.state import Key
from lockstep_operator.kinds import DEPLOYMENTS
from lockstep_operator.metrics import Metrics
from lockstep_operator.reconcile import Reconciler
from lockstep_operator.settings import Settings

logger = logging.getLogger(__name__)
NUM_WORKERS = 8
CONFLICT_RETRY_S = 0.5
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 120.0
BEAT_S = 2.0
BEAT_LIMIT_S = 60.0


class Controller:
    """Queue, workers, resync.

    Args:
        settings: the operator's settings.
        kube: the API server.
        reconciler: does one pass for a key.
        metrics: told about every pass.
        children: the kinds of children that a deployment has.
    """

    def __init__(
        self, settings: Settings, kube: Kube, reconciler: Reconciler, metrics: Metrics, children: tuple[Child, ...]
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._reconciler = reconciler
        self._metrics = metrics
        self._children = children
        self._queue: WorkQueue | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failures: dict[Key, int] = {}
        self._last_beat = time.monotonic()

    def is_alive(self) -> bool:
        """Whether the event loop has turned lately."""
        return time.monotonic() - self._last_beat < BEAT_LIMIT_S

    async def start(self) -> None:
        """Start workers, resync and the watches of children that kopf cannot watch."""
        self._queue = WorkQueue()
        loops = [self._beat(), self._resync(self._queue), *(self._work(self._queue) for _ in range(NUM_WORKERS))]
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        start_child_watches(self._kube, self._settings.namespaces, self._queue.add_from_thread, self._children)

    async def stop(self) -> None:
        """Stop taking up work; a pass that runs ends by itself."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def wake(self, key: Key) -> None:
        """Queue a deployment."""
        if self._queue is not None:
            self._queue.add(key)

    async def _beat(self) -> None:
        while True:
            self._last_beat = time.monotonic()
            await asyncio.sleep(BEAT_S)

    async def _resync(self, queue: WorkQueue) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_s)
            for namespace in self._settings.namespaces or (None,):
                try:
                    found = await asyncio.to_thread(self._kube.list, DEPLOYMENTS, namespace)
                except KubeError as error:
                    logger.warning("cannot list deployments: %s", error)
                    continue
                for item in found:
                    queue.add((item["metadata"]["namespace"], item["metadata"]["name"]))

    async def _work(self, queue: WorkQueue) -> None:
        while True:
            key = await queue.take()
            try:
                again_s = await self._reconcile(key)
            finally:
                queue.done(key)
            if again_s is not None:
                queue.add(key, again_s)

    async def _reconcile(self, key: Key) -> float | None:
        started = time.monotonic()
        result, again_s = "error", None
        try:
            again_s = await asyncio.to_thread(self._reconciler.reconcile, key)
            result = "ok" if again_s is None else "requeued"
            self._failures.pop(key, None)
        except Conflict as error:
            logger.info("%s/%s: read again: %s", *key, error)
            result, again_s = "conflict", CONFLICT_RETRY_S
        except KubeError as error:
            again_s = self._count_failure(key)
            logger.warning("%s/%s: again in %g s: %s", *key, again_s, error)
        except Exception:
            again_s = self._count_failure(key)
            logger.exception("%s/%s: again in %g s", *key, again_s)
        self._metrics.observe_reconcile(result, time.monotonic() - started)
        return again_s

    def _count_failure(self, key: Key) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(FIRST_RETRY_S * 2 ** min(failures - 1, 10), LAST_RETRY_S))

"""kopf as the event source: every event puts its deployment's key into the queue, and workers reconcile from there.

Only `on.event` handlers exist, so kopf writes nothing: no finalizer, no annotation, no stored diff base.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import kopf
from kubernetes import client

from lockstep_operator import names
from lockstep_operator.decide.state import Key
from lockstep_operator.errors import Conflict, KubeError
from lockstep_operator.kube import DEPLOYMENTS, Kube, load_configuration
from lockstep_operator.metrics import Metrics
from lockstep_operator.reconcile import Reconciler
from lockstep_operator.settings import Settings
from lockstep_operator.watch.jobwatch import SELECTOR, find_deployment, start_job_watch
from lockstep_operator.watch.workqueue import WorkQueue

logger = logging.getLogger(__name__)
NUM_WORKERS = 8
CONFLICT_RETRY_S = 0.5
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 120.0
BEAT_S = 2.0
BEAT_LIMIT_S = 60.0
CHILDREN = ("services", "pods")
"""Core resources whose events kopf brings; it selects them at the API server, so no other pod is ever received."""


class Controller:
    """The operator's running part: queue, workers, resync.

    Args:
        settings: the operator's settings.
        kube: the API server.
        reconciler: does one pass for a key.
        metrics: told about every pass.
    """

    def __init__(self, settings: Settings, kube: Kube, reconciler: Reconciler, metrics: Metrics) -> None:
        self._settings = settings
        self._kube = kube
        self._reconciler = reconciler
        self._metrics = metrics
        self._queue: WorkQueue | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failures: dict[Key, int] = {}
        self._last_beat = time.monotonic()

    def is_alive(self) -> bool:
        """Whether the event loop has turned lately."""
        return time.monotonic() - self._last_beat < BEAT_LIMIT_S

    async def start(self) -> None:
        """Start workers, resync and the watch of MPIJobs."""
        self._queue = WorkQueue()
        loops = [self._beat(), self._resync(self._queue), *(self._work(self._queue) for _ in range(NUM_WORKERS))]
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        start_job_watch(self._kube, self._settings.namespaces, self._queue.add_from_thread)

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


def build_registry(controller: Controller) -> kopf.OperatorRegistry:
    """Build kopf's registry: which events wake which deployment."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.watching.server_timeout = 240
        settings.watching.client_timeout = 270
        settings.watching.connect_timeout = 10
        settings.networking.request_timeout = 30
        await controller.start()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return build_connection(load_configuration())

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await controller.stop()

    @kopf.on.event(names.API_GROUP, names.API_VERSION, names.PLURAL, registry=registry)
    async def on_deployment(namespace: str, name: str, **_: Any) -> None:
        controller.wake((namespace, name))

    async def on_child(body: kopf.Body, **_: Any) -> None:
        controller.wake(find_deployment(dict(body)))

    for plural in CHILDREN:
        kopf.on.event("v1", plural, registry=registry, id=plural)(on_child)
    return registry


def build_connection(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """Give kopf the credentials that our own client has; kopf asks again when they are refused."""
    token = configuration.auth_settings().get("BearerToken")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        token=token["value"].removeprefix("Bearer ").removeprefix("bearer ") if token else None,
        scheme="Bearer" if token else None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


def run(settings: Settings, controller: Controller) -> None:
    """Run kopf until the process is told to end."""
    kopf_settings = kopf.OperatorSettings()
    kopf_settings.scanning.disabled = bool(settings.namespaces)  # a Role cannot watch CRDs and namespaces
    for plural in CHILDREN:
        kopf_settings.watching.label_selectors["v1", plural] = SELECTOR
    kopf.run(
        registry=build_registry(controller),
        settings=kopf_settings,
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )

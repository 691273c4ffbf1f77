"""Watches the MPIJobs of all groups by label, in threads of its own.

kopf cannot: it ends the whole operator when an API that it watches goes away, and without the right to watch CRDs it
never notices one that comes later. The MPIJob API belongs to another product and may do both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lockstep_operator import names
from lockstep_operator.decide.state import Key
from lockstep_operator.errors import KubeError
from lockstep_operator.kube import MPIJOBS, Kube, Object

logger = logging.getLogger(__name__)
SELECTOR = f"app.kubernetes.io/managed-by={names.FIELD_MANAGER},{names.LABEL_DEPLOYMENT}"
"""Selects the children of all deployments."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0


def start_job_watch(kube: Kube, namespaces: tuple[str, ...], wake: Callable[[Key], None]) -> None:
    """Start one watch for each namespace, or one for all, for as long as the process lives.

    Args:
        kube: the API server.
        namespaces: empty for all.
        wake: called, in the watch's thread, with the deployment of every MPIJob that appears, changes or goes.
    """
    for namespace in namespaces or (None,):
        name = f"mpijobs-{namespace or 'all'}"
        threading.Thread(target=_watch_forever, args=(kube, namespace, wake), name=name, daemon=True).start()


def _watch_forever(kube: Kube, namespace: str | None, wake: Callable[[Key], None]) -> None:
    retry_s = FIRST_RETRY_S
    while True:
        try:
            for job in kube.watch(MPIJOBS, namespace, SELECTOR):
                retry_s = FIRST_RETRY_S
                wake(find_deployment(job))
        except (KubeError, ValueError) as error:  # ValueError: what came was no JSON
            logger.info("the watch of MPIJobs in %s broke, again in %g s: %s", namespace or "all", retry_s, error)
            time.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)


def find_deployment(item: Object) -> Key:
    """Find the deployment that an object is labelled with."""
    metadata = item["metadata"]
    return metadata["namespace"], metadata["labels"][names.LABEL_DEPLOYMENT]

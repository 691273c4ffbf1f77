"""Watches the children whose API belongs to another product, such as MPIJobs, by label, in threads of its own.

kopf cannot: it ends the whole operator when an API that it watches goes away, and without the right to watch CRDs it
never notices one that comes later. The API of another product may do both.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable

from lockstep_operator import names
from lockstep_operator.children.child import Child
from lockstep_operator.clients.kube import Kube
from lockstep_operator.errors import KubeError
from lockstep_operator.groups.state import Key
from lockstep_operator.kinds import Kind, Object

logger = logging.getLogger(__name__)
SELECTOR = f"app.kubernetes.io/managed-by={names.FIELD_MANAGER},{names.LABEL_DEPLOYMENT}"
"""Selects the children of all deployments."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0


def start_child_watches(
    kube: Kube, namespaces: tuple[str, ...], wake: Callable[[Key], None], children: tuple[Child, ...]
) -> None:
    """Start one watch for each kind and namespace, or one for all, for as long as the process lives.

    Args:
        kube: the API server.
        namespaces: empty for all.
        wake: called, in the watch's thread, with the deployment of every child that appears, changes or goes.
        children: the kinds of children that a deployment has; those of the core API are left to kopf.
    """
    kinds = [child.kind for child in children if not child.kind.is_core]
    for kind, namespace in itertools.product(kinds, namespaces or (None,)):
        name = f"{kind.plural}-{namespace or 'all'}"
        threading.Thread(target=_watch_forever, args=(kube, kind, namespace, wake), name=name, daemon=True).start()


def _watch_forever(kube: Kube, kind: Kind, namespace: str | None, wake: Callable[[Key], None]) -> None:
    retry_s = FIRST_RETRY_S
    while True:
        try:
            for item in kube.watch(kind, namespace, SELECTOR):
                retry_s = FIRST_RETRY_S
                wake(find_deployment(item))
        except (KubeError, ValueError) as error:  # ValueError: what came was no JSON
            where = namespace or "all"
            logger.info("the watch of %ss in %s broke, again in %g s: %s", kind.name, where, retry_s, error)
            time.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)


def find_deployment(item: Object) -> Key:
    """Find the deployment that an object is labelled with."""
    metadata = item["metadata"]
    return metadata["namespace"], metadata["labels"][names.LABEL_DEPLOYMENT]

"""The only writer of children: carries out a plan's actions in their order.

An action that comes too late (the object is gone, or changed) is harmless; the next pass sees why. An object of a
child's name that belongs to somebody else is reported and never written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from lockstep_operator import names
from lockstep_operator.decide import actions
from lockstep_operator.decide.state import Observed, Pod
from lockstep_operator.drain import Drains
from lockstep_operator.errors import NotFound
from lockstep_operator.kube import DEPLOYMENTS, MPIJOBS, PODS, SERVICES, Kube, Object, Resource
from lockstep_operator.manifests.owner import add_owner, is_owned
from lockstep_operator.resource.record import format_time

logger = logging.getLogger(__name__)


class Applier:
    """Carries out actions for one deployment.

    Args:
        kube: the API server.
        drains: the way to launchers.
        on_restart: told the reason of every broken group that is deleted.
    """

    def __init__(self, kube: Kube, drains: Drains, on_restart: Callable[[Observed, str], None]) -> None:
        self._kube = kube
        self._drains = drains
        self._on_restart = on_restart

    def apply(self, seen: Observed, steps: tuple[actions.Action, ...], now: datetime) -> tuple[str, ...]:
        """Carry out actions.

        Returns:
            Names of objects (`Service x`) that should be ours and belong to somebody else.
        """
        conflicts: list[str] = []
        for step in steps:
            logger.info("%s/%s: %s", seen.namespace, seen.name, describe(step))
            if not self._apply_one(seen, step, now):
                conflicts.append(describe(step).removeprefix("create "))
        return tuple(conflicts)

    def _apply_one(self, seen: Observed, step: actions.Action, now: datetime) -> bool:
        """Carry out one action; False when an object of somebody else is in its way."""
        match step:
            case actions.CreateService(manifest):
                return self._create(seen, SERVICES, manifest)
            case actions.CreateGroup(manifest):
                return self._create(seen, MPIJOBS, manifest)
            case actions.UpdateService(manifest, resource_version):
                self._update_service(seen, manifest, resource_version)
            case actions.DeleteService(name, uid):
                self._kube.delete(SERVICES, seen.namespace, name, uid)
            case actions.DeleteGroup(group, reason, is_repair):
                self._kube.delete(MPIJOBS, seen.namespace, group.name, group.uid)
                if is_repair:
                    self._on_restart(seen, reason)
            case actions.EndTraffic(_, launcher):
                self._end_traffic(seen, launcher, now)
            case actions.StartDrain(_, address):
                self._drains.start(address)
            case actions.AddFinalizer():
                self._set_finalizers(seen, (*seen.finalizers, names.FINALIZER))
            case actions.RemoveFinalizer():
                self._set_finalizers(seen, tuple(name for name in seen.finalizers if name != names.FINALIZER))
        return True

    def _create(self, seen: Observed, resource: Resource, manifest: Object) -> bool:
        """Create a child unless its name is taken; the rare case that it gets taken in between ends as a field
        conflict.
        """
        existing = self._kube.find(resource, seen.namespace, manifest["metadata"]["name"])
        if existing is not None and not is_owned(existing, seen.uid):
            return False
        owned = add_owner(manifest, seen.name, seen.uid)
        if existing is None:
            self._kube.apply(resource, owned, force=False)
        elif resource is SERVICES:  # ours, but its labels were taken away, so that it was not seen
            self._update_service(seen, manifest, existing["metadata"]["resourceVersion"])
        return True

    def _update_service(self, seen: Observed, manifest: Object, resource_version: str) -> None:
        owned = add_owner(manifest, seen.name, seen.uid)
        metadata = owned["metadata"] | {"resourceVersion": resource_version}
        self._kube.apply(SERVICES, owned | {"metadata": metadata}, force=True)

    def _end_traffic(self, seen: Observed, launcher: Pod, now: datetime) -> None:
        labels = {names.LABEL_SERVING: "false"}
        annotations = {names.ANNOTATION_DRAINING_SINCE: format_time(now)}
        metadata = {"uid": launcher.uid, "labels": labels, "annotations": annotations}
        try:
            self._kube.patch(PODS, seen.namespace, launcher.name, {"metadata": metadata})
        except NotFound:
            logger.info("%s/%s: pod %s is gone already", seen.namespace, seen.name, launcher.name)

    def _set_finalizers(self, seen: Observed, finalizers: tuple[str, ...]) -> None:
        metadata = {"resourceVersion": seen.resource_version, "finalizers": list(finalizers)}
        try:
            self._kube.patch(DEPLOYMENTS, seen.namespace, seen.name, {"metadata": metadata})
        except NotFound:
            logger.info("%s/%s: is gone already", seen.namespace, seen.name)


def describe(step: actions.Action) -> str:
    """Say in a few words what an action does."""
    match step:
        case actions.CreateService(manifest) | actions.CreateGroup(manifest):
            return f"create {manifest['kind']} {manifest['metadata']['name']}"
        case actions.UpdateService(manifest, _):
            return f"update Service {manifest['metadata']['name']}"
        case actions.DeleteService(name, _):
            return f"delete Service {name}"
        case actions.DeleteGroup(group, reason, _):
            return f"delete MPIJob {group.name}: {reason}"
        case actions.EndTraffic(group, launcher):
            return f"take {launcher.name} of group {group.name} out of service"
        case actions.StartDrain(group, _):
            return f"drain group {group.name}"
        case actions.AddFinalizer():
            return "add the finalizer"
        case actions.RemoveFinalizer():
            return "remove the finalizer"

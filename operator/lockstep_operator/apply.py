"""The only writer of children: carries out a plan's actions in their order.

An action that comes too late (the object is gone, or changed) is harmless; the next pass sees why. An object of a
child's name that belongs to somebody else is reported and never written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from lockstep_operator import names
from lockstep_operator.api.status import format_time
from lockstep_operator.children.child import Child
from lockstep_operator.children.owner import add_owner, is_owned
from lockstep_operator.clients.kube import Kube
from lockstep_operator.clients.launcher import Launchers
from lockstep_operator.errors import NotFound
from lockstep_operator.groups.state import Observed, Pod
from lockstep_operator.kinds import DEPLOYMENTS, PODS, Object
from lockstep_operator.plan import actions

logger = logging.getLogger(__name__)


class Applier:
    """Carries out actions for one deployment.

    Args:
        kube: the API server.
        launchers: the way to launchers.
        on_restart: told the reason of every broken group that is deleted.
    """

    def __init__(self, kube: Kube, launchers: Launchers, on_restart: Callable[[Observed, str], None]) -> None:
        self._kube = kube
        self._launchers = launchers
        self._on_restart = on_restart

    def apply(self, seen: Observed, wanted: tuple[actions.Action, ...], now: datetime) -> tuple[str, ...]:
        """Carry out actions.

        Returns:
            Names of objects (`Service x`) that should be ours and belong to somebody else.
        """
        conflicts: list[str] = []
        for action in wanted:
            logger.info("%s/%s: %s", seen.namespace, seen.name, describe(action))
            if not self._apply_one(seen, action, now):
                conflicts.append(describe(action).removeprefix("create "))
        return tuple(conflicts)

    def _apply_one(self, seen: Observed, action: actions.Action, now: datetime) -> bool:
        """Carry out one action; False when an object of somebody else is in its way."""
        match action:
            case actions.CreateChild(child, manifest):
                return self._create(seen, child, manifest)
            case actions.UpdateChild(child, manifest, resource_version):
                self._update(seen, child, manifest, resource_version)
            case actions.DeleteChild(child, name, uid, reason, is_repair):
                self._kube.delete(child.kind, seen.namespace, name, uid, child.propagation)
                if is_repair:
                    self._on_restart(seen, reason)
            case actions.EndTraffic(_, launcher):
                self._end_traffic(seen, launcher, now)
            case actions.StartDrain(_, address):
                self._launchers.start_drain(address)
            case actions.AddFinalizer():
                self._set_finalizers(seen, (*seen.finalizers, names.FINALIZER))
            case actions.RemoveFinalizer():
                self._set_finalizers(seen, tuple(name for name in seen.finalizers if name != names.FINALIZER))
        return True

    def _create(self, seen: Observed, child: Child, manifest: Object) -> bool:
        """Create a child unless its name is taken; the rare case that it gets taken in between ends as a field
        conflict.
        """
        existing = self._kube.find(child.kind, seen.namespace, manifest["metadata"]["name"])
        if existing is not None and not is_owned(existing, seen.uid):
            return False
        if existing is None:
            self._kube.apply(child.kind, add_owner(manifest, seen.name, seen.uid), force=False)
        elif child.differs is not None:  # ours, but its labels were taken away, so that it was not seen
            self._update(seen, child, manifest, existing["metadata"]["resourceVersion"])
        return True

    def _update(self, seen: Observed, child: Child, manifest: Object, resource_version: str) -> None:
        owned = add_owner(manifest, seen.name, seen.uid)
        metadata = owned["metadata"] | {"resourceVersion": resource_version}
        self._kube.apply(child.kind, owned | {"metadata": metadata}, force=True)

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


def describe(action: actions.Action) -> str:
    """Say in a few words what an action does."""
    match action:
        case actions.CreateChild(child, manifest):
            return f"create {child.kind.name} {manifest['metadata']['name']}"
        case actions.UpdateChild(child, manifest, _):
            return f"update {child.kind.name} {manifest['metadata']['name']}"
        case actions.DeleteChild(child, name, _, reason, _):
            return f"delete {child.kind.name} {name}" + (f": {reason}" if reason else "")
        case actions.EndTraffic(group, launcher):
            return f"take {launcher.name} of group {group.name} out of service"
        case actions.StartDrain(group, _):
            return f"drain group {group.name}"
        case actions.AddFinalizer():
            return "add the finalizer"
        case actions.RemoveFinalizer():
            return "remove the finalizer"

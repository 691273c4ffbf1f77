"""Standing children of all kinds: made, put right, and removed when the spec no longer asks for them. Pure.

A kind whose API is not served holds nothing up: none of it is made, the plan names it, and the rest goes on.
"""

from __future__ import annotations

from lockstep_operator import names
from lockstep_operator.api.spec import Spec
from lockstep_operator.children.child import Child
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.groups.state import Observed
from lockstep_operator.kinds import Object, read_label
from lockstep_operator.plan.actions import Action, CreateChild, DeleteChild, Plan, UpdateChild

PLATFORM_RETRY_S = 15.0
"""An API that is not served is asked for again: no event tells that it has come."""


def plan_children(seen: Observed, spec: Spec, children: tuple[Child, ...]) -> Plan:
    """Bring the standing children of each kind to what the spec says."""
    return Plan().join(*(_plan_child(seen, spec, child) for child in children))


def plan_removal(seen: Observed, children: tuple[Child, ...]) -> Plan:
    """Remove all standing children, but those of a group only when the group has gone."""
    return Plan(tuple(action for child in children for action in _plan_kind(seen, child, [])))


def has_removable(seen: Observed) -> bool:
    """Whether a standing child is there that is, or will be, removed by us before its deployment goes.

    While MPIJobs are not served those of groups are not: they go after the deployment, which owns them.
    """
    is_served = seen.is_served(MPIJOB.kind)
    return any(
        is_served or not read_label(item, names.LABEL_GROUP) for items in seen.children.values() for item in items
    )


def _plan_child(seen: Observed, spec: Spec, child: Child) -> Plan:
    if child.list_wanted is None:
        return Plan()
    wanted = child.list_wanted(spec, deployment=seen.name, namespace=seen.namespace, groups=seen.groups)
    if not seen.is_served(child.kind):
        return Plan(again_s=PLATFORM_RETRY_S, missing=(child.kind,)) if wanted else Plan()
    return Plan(tuple(_plan_kind(seen, child, wanted)))


def _plan_kind(seen: Observed, child: Child, wanted: list[Object]) -> list[Action]:
    existing = {item["metadata"]["name"]: item for item in seen.children.get(child.kind, ())}
    actions: list[Action] = []
    for manifest in wanted:
        item = existing.pop(manifest["metadata"]["name"], None)
        if item is None:
            actions.append(CreateChild(child, manifest))
        elif child.differs is not None and child.differs(manifest, item):
            actions.append(UpdateChild(child, manifest, item["metadata"]["resourceVersion"]))
    removed = [item["metadata"] for item in existing.values() if _may_go(seen, item)]
    return actions + [DeleteChild(child, metadata["name"], metadata["uid"]) for metadata in removed]


def _may_go(seen: Observed, item: Object) -> bool:
    return "deletionTimestamp" not in item["metadata"] and not _is_held(seen, item) and not _is_frozen(seen, item)


def _is_held(seen: Observed, item: Object) -> bool:
    """Whether an object belongs to a group that is there, has pods left, or cannot be seen."""
    group = read_label(item, names.LABEL_GROUP)
    if not group:
        return False
    there = {entry.name for entry in seen.groups} | {pod.group for pod in seen.leftovers}
    return group in there or not seen.is_served(MPIJOB.kind)


def _is_frozen(seen: Observed, item: Object) -> bool:
    """Whether an object belongs to a role that left a paused spec while groups of it still serve."""
    if seen.spec is None or not seen.spec.paused or seen.deleting:
        return False
    role = read_label(item, names.LABEL_ROLE)
    there = {group.role for group in seen.groups} | {pod.role for pod in seen.leftovers}
    return role in there and all(entry.name != role for entry in seen.spec.roles)

"""Standing children of all kinds: made, put right, and removed when the spec no longer asks for them. Pure."""

from __future__ import annotations

from lockstep_operator import names
from lockstep_operator.api.spec import Spec
from lockstep_operator.children.child import Child
from lockstep_operator.groups.state import Observed
from lockstep_operator.kinds import Object
from lockstep_operator.plan.actions import Action, CreateChild, DeleteChild, Plan, UpdateChild


def plan_children(seen: Observed, spec: Spec, children: tuple[Child, ...]) -> Plan:
    """Bring the standing children of each kind to what the spec says."""
    actions: list[Action] = []
    for child in children:
        if child.list_wanted is not None:
            wanted = child.list_wanted(spec, deployment=seen.name, namespace=seen.namespace, groups=seen.groups)
            actions += _plan_kind(seen, child, wanted)
    return Plan(tuple(actions))


def plan_removal(seen: Observed, children: tuple[Child, ...]) -> Plan:
    """Remove all standing children, but those of a group only when the group has gone."""
    return Plan(tuple(action for child in children for action in _plan_kind(seen, child, [])))


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
    metadata = item["metadata"]
    group = metadata.get("labels", {}).get(names.LABEL_GROUP)
    return "deletionTimestamp" not in metadata and all(group != entry.name for entry in seen.groups)

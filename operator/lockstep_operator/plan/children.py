"""Standing children of all kinds: made, put right, and removed when the spec no longer asks for them. Pure."""

from __future__ import annotations

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
            wanted = child.list_wanted(spec, deployment=seen.name, namespace=seen.namespace)
            actions += _plan_kind(child, wanted, seen.children.get(child.kind, ()))
    return Plan(tuple(actions))


def plan_removal(seen: Observed, children: tuple[Child, ...]) -> Plan:
    """Remove all standing children."""
    return Plan(tuple(action for child in children for action in _remove(child, seen.children.get(child.kind, ()))))


def _plan_kind(child: Child, wanted: list[Object], existing: tuple[Object, ...]) -> list[Action]:
    left = {item["metadata"]["name"]: item for item in existing}
    actions: list[Action] = []
    for manifest in wanted:
        item = left.pop(manifest["metadata"]["name"], None)
        if item is None:
            actions.append(CreateChild(child, manifest))
        elif child.differs is not None and child.differs(manifest, item):
            actions.append(UpdateChild(child, manifest, item["metadata"]["resourceVersion"]))
    return actions + _remove(child, tuple(left.values()))


def _remove(child: Child, items: tuple[Object, ...]) -> list[Action]:
    staying = [item["metadata"] for item in items if "deletionTimestamp" not in item["metadata"]]
    return [DeleteChild(child, metadata["name"], metadata["uid"]) for metadata in staying]

"""A kind of child that the operator does not have: a ConfigMap for a deployment that serves at all, and one a group."""

from __future__ import annotations

from lockstep_operator import names
from lockstep_operator.api.spec import Spec
from lockstep_operator.children.child import Child
from lockstep_operator.groups.state import Group
from lockstep_operator.kinds import Kind, Object


def list_settings(spec: Spec, *, deployment: str, namespace: str, groups: tuple[Group, ...]) -> list[Object]:
    """List the deployment's ConfigMap, if any group is wanted, and that of each group."""

    def build(name: str, role: str, **labels: str) -> Object:
        metadata = {
            "name": f"{name}-settings",
            "namespace": namespace,
            "labels": names.build_labels(deployment, role) | labels,
        }
        data = {"model": spec.model.served_name}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    own = [build(deployment, spec.roles[0].name)] if spec.replicas else []
    return own + [build(group.name, group.role, **{names.LABEL_GROUP: group.name}) for group in groups]


SETTINGS = Child(kind=Kind("ConfigMap", "", "v1", "configmaps"), list_wanted=list_settings)

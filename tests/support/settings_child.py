"""A kind of child that the operator does not have: a ConfigMap for each deployment that serves at all."""

from __future__ import annotations

from lockstep_operator import names
from lockstep_operator.api.spec import Spec
from lockstep_operator.children.child import Child
from lockstep_operator.kinds import Kind, Object


def list_settings(spec: Spec, *, deployment: str, namespace: str) -> list[Object]:
    """List the one ConfigMap, or none when no group is wanted."""
    metadata = {
        "name": f"{deployment}-settings",
        "namespace": namespace,
        "labels": names.build_labels(deployment, spec.roles[0].name),
    }
    data = {"model": spec.model.served_name}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    return [manifest] if spec.replicas else []


SETTINGS = Child(kind=Kind("ConfigMap", "", "v1", "configmaps"), list_wanted=list_settings)

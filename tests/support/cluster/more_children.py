"""Kinds of children that the operator does not have: ConfigMaps and a Lease that name the model, and a gang."""

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


def list_leases(spec: Spec, *, deployment: str, namespace: str, groups: tuple[Group, ...]) -> list[Object]:
    """List the deployment's Lease, which names its model."""
    labels = names.build_labels(deployment, spec.roles[0].name)
    metadata = {"name": f"{deployment}-lease", "namespace": namespace, "labels": labels}
    holder = {"holderIdentity": spec.model.served_name}
    return [{"apiVersion": LEASE.kind.api_version, "kind": LEASE.kind.name, "metadata": metadata, "spec": holder}]


LEASE = Child(kind=Kind("Lease", "coordination.k8s.io", "v1", "leases"), list_wanted=list_leases)
"""As a kind of another product: it is not of the core API, so kopf does not watch it."""


def list_gangs(spec: Spec, *, deployment: str, namespace: str, groups: tuple[Group, ...]) -> list[Object]:
    """List one gang; no API server serves them."""
    labels = names.build_labels(deployment, spec.roles[0].name)
    metadata = {"name": deployment, "namespace": namespace, "labels": labels}
    return [{"apiVersion": GANG.kind.api_version, "kind": GANG.kind.name, "metadata": metadata}]


GANG = Child(kind=Kind("Gang", "gangs.example.dev", "v1", "gangs"), list_wanted=list_gangs)
"""A kind whose API is not served."""

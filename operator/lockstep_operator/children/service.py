"""The Service in front of a role's launchers; the MPIJob's own Service is for ssh and names every pod."""

from __future__ import annotations

from lockstep_operator import names
from lockstep_operator.api.spec import Role, Spec
from lockstep_operator.children.child import Child
from lockstep_operator.groups.state import Group
from lockstep_operator.kinds import Kind, Object
from lockstep_worker import contract


def list_services(spec: Spec, *, deployment: str, namespace: str, groups: tuple[Group, ...]) -> list[Object]:
    """List the Services of all roles, whether or not they have groups; nothing routes between roles."""
    return [build_service(role, deployment=deployment, namespace=namespace) for role in spec.roles]


def build_service(role: Role, *, deployment: str, namespace: str) -> Object:
    """Build the Service that sends a role's traffic to launchers that serve."""
    return {
        "apiVersion": SERVICE.kind.api_version,
        "kind": SERVICE.kind.name,
        "metadata": {
            "name": names.build_service_name(deployment, role.name),
            "namespace": namespace,
            "labels": names.build_labels(deployment, role.name),
        },
        "spec": {
            "type": "ClusterIP",
            "selector": {
                names.LABEL_DEPLOYMENT: deployment,
                names.LABEL_ROLE: role.name,
                names.LABEL_SERVING: "true",
            },
            "ports": [{"name": "http", "port": contract.HTTP_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def build_url(role: Role, *, deployment: str, namespace: str) -> str:
    """Say where a role is reached from within the cluster."""
    return f"http://{names.build_service_name(deployment, role.name)}.{namespace}.svc:{contract.HTTP_PORT}"


SERVICE = Child(kind=Kind("Service", "", "v1", "services"), list_wanted=list_services)
"""Standing: somebody's change at it is put right."""

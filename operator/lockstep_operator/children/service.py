"""The Service in front of a role's launchers; the MPIJob's own Service is for ssh and names every pod."""

from __future__ import annotations

from typing import Any

from lockstep_operator import names
from lockstep_operator.resource.spec import Role
from lockstep_worker import contract


def build_service(role: Role, *, deployment: str, namespace: str) -> dict[str, Any]:
    """Build the Service that sends a role's traffic to launchers that serve."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
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

"""Every name that reaches the cluster: API group, labels, annotations, finalizer, and the names of children.

A group's MPIJob is called `<deployment>-<role>-<revision>-<index>`. When an earlier group of that name cannot go away
(its node is lost), `-<incarnation>` is appended. mpi-operator derives pod names from it, the longest being
`<group>-worker-<n>`, which must be a DNS-1035 label of at most 63 characters.
"""

from __future__ import annotations

API_GROUP = "serving.lockstep.dev"
API_VERSION = "v1alpha1"
KIND = "ServingDeployment"
PLURAL = "servingdeployments"
SHORT_NAME = "sdep"

FIELD_MANAGER = "lockstep-operator"
FINALIZER = f"{API_GROUP}/drain"

LABEL_DEPLOYMENT = f"{API_GROUP}/deployment"
LABEL_ROLE = f"{API_GROUP}/role"
LABEL_REVISION = f"{API_GROUP}/revision"
LABEL_GROUP = f"{API_GROUP}/group"
LABEL_INDEX = f"{API_GROUP}/index"
LABEL_SERVING = f"{API_GROUP}/serving"
"""On launcher pods: "true" while the group may get traffic, "false" from the start of its drain."""
ANNOTATION_DRAINING_SINCE = f"{API_GROUP}/draining-since"
"""On a launcher pod, written together with `LABEL_SERVING`: when its drain began (RFC 3339)."""
LABEL_JOB_ROLE = "training.kubeflow.org/job-role"
"""Set by mpi-operator on pods: `launcher` or `worker`."""
LABEL_REPLICA_INDEX = "training.kubeflow.org/replica-index"

MAX_INDEX_DIGITS = 2
MAX_WORKER_DIGITS = 2
MAX_INCARNATION = 9
REVISION_LENGTH = 8
MAX_NAME = 63
MAX_DEPLOYMENT_AND_ROLE = MAX_NAME - len(
    f"--{'r' * REVISION_LENGTH}-{'i' * MAX_INDEX_DIGITS}-{MAX_INCARNATION}-worker-{'n' * MAX_WORKER_DIGITS}"
)
"""How many characters the names of a deployment and of a role may have together."""


def build_group_name(deployment: str, role: str, revision: str, index: int, incarnation: int = 0) -> str:
    """Name a group; the same inputs give the same name for ever."""
    name = f"{deployment}-{role}-{revision}-{index}"
    return f"{name}-{incarnation}" if incarnation else name


def build_service_name(deployment: str, role: str) -> str:
    """Name the Service that carries a role's traffic."""
    return f"{deployment}-{role}"


def build_labels(deployment: str, role: str) -> dict[str, str]:
    """Build the labels that all children of a role carry."""
    return {
        "app.kubernetes.io/name": "lockstep-engine",
        "app.kubernetes.io/instance": deployment,
        "app.kubernetes.io/component": role,
        "app.kubernetes.io/part-of": "lockstep",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        LABEL_DEPLOYMENT: deployment,
        LABEL_ROLE: role,
    }


def build_selector(deployment: str) -> str:
    """Select all children of a deployment."""
    return f"app.kubernetes.io/managed-by={FIELD_MANAGER},{LABEL_DEPLOYMENT}={deployment}"


def build_serving_selector(deployment: str, role: str | None = None) -> str:
    """Select the pods that take a deployment's traffic, or one role's, as the scale subresource shows it."""
    of_role = f",{LABEL_ROLE}={role}" if role else ""
    return f"{LABEL_DEPLOYMENT}={deployment}{of_role},{LABEL_SERVING}=true"

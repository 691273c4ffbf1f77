"""The MPIJob of one group.

mpi-operator is asked to do as little as possible after the start: it restarts nothing (`backoffLimit: 0`, `Never`),
sets no deadline, and removes pods with the job. All repair is ours, by replacing the group.
"""

from __future__ import annotations

from typing import Any

from lockstep_operator import names
from lockstep_operator.manifests.pods import build_launcher_template, build_worker_template
from lockstep_operator.resource.spec import Role, Spec
from lockstep_worker import contract


def build_mpijob(
    spec: Spec, role: Role, *, deployment: str, namespace: str, name: str, index: int, revision: str
) -> dict[str, Any]:
    """Build the MPIJob for one group of a role.

    Args:
        spec: the deployment's spec.
        role: one of its roles.
        deployment: the deployment's name.
        namespace: the deployment's namespace.
        name: the group's name, from `names.build_group_name`.
        index: the group's place within the role.
        revision: the role's current revision.
    """
    labels = names.build_labels(deployment, role.name) | {
        names.LABEL_REVISION: revision,
        names.LABEL_GROUP: name,
        names.LABEL_INDEX: str(index),
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": build_mpijob_spec(spec, role, labels),
    }


def build_mpijob_spec(spec: Spec, role: Role, labels: dict[str, str]) -> dict[str, Any]:
    """Build an MPIJob's spec; `labels` go to the pods."""
    launcher = build_launcher_template(spec, role, labels | {names.LABEL_SERVING: "true"})
    replicas = {"Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher}}
    job: dict[str, Any] = {
        "mpiImplementation": "OpenMPI",
        "slotsPerWorker": role.slots,
        "runLauncherAsWorker": True,
        "sshAuthMountPath": contract.SSH_DIR,
        "runPolicy": {"cleanPodPolicy": "All", "backoffLimit": 0},
        "mpiReplicaSpecs": replicas,
    }
    if role.num_nodes > 1:
        job["launcherCreationPolicy"] = "WaitForWorkersReady"
        replicas["Worker"] = {
            "replicas": role.num_nodes - 1,
            "restartPolicy": "Never",
            "template": build_worker_template(spec, role, labels),
        }
    return job

"""The MPIJob of one group.

mpi-operator is asked to do as little as possible after the start: it restarts nothing (`backoffLimit: 0`, `Never`),
sets no deadline, and removes pods with the job. All repair is ours, by replacing the group.
"""

from __future__ import annotations

from lockstep_operator import names
from lockstep_operator.api.spec import Role, Spec
from lockstep_operator.children.child import Child
from lockstep_operator.children.pods import build_launcher_template, build_worker_template
from lockstep_operator.kinds import Kind, Object
from lockstep_worker import contract

MPIJOB = Child(
    kind=Kind("MPIJob", "kubeflow.org", "v2beta1", "mpijobs"), list_wanted=None, differs=None, propagation="Foreground"
)
"""A group. It is never patched: a change or a repair is another group. It vanishes only after all its pods."""


def build_mpijob(
    spec: Spec, role: Role, *, deployment: str, namespace: str, name: str, index: int, revision: str
) -> Object:
    """Build the MPIJob for one group of a role.

    Args:
        spec: the deployment's spec.
        role: one of its roles.
        deployment: the deployment's name.
        namespace: the deployment's namespace.
        name: the group's name, from `names.build_group_name`.
        index: the group's index within the role.
        revision: the role's current revision.
    """
    labels = names.build_labels(deployment, role.name) | {
        names.LABEL_REVISION: revision,
        names.LABEL_GROUP: name,
        names.LABEL_INDEX: str(index),
    }
    return {
        "apiVersion": MPIJOB.kind.api_version,
        "kind": MPIJOB.kind.name,
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": build_mpijob_spec(spec, role, labels),
    }


def build_mpijob_spec(spec: Spec, role: Role, labels: dict[str, str]) -> Object:
    """Build an MPIJob's spec; `labels` go to the pods."""
    launcher = build_launcher_template(spec, role, labels | {names.LABEL_SERVING: "true"})
    replicas = {"Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher}}
    job: Object = {
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

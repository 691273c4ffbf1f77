# ruff: noqa: F811 (a fixture's name is imported, and a parameter)
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockstep_worker.contract import HOSTFILE, SSH_DIR, SSH_PORT, USER_ID, sshd_command
from support.cluster.agent_pods import AgentPods, nodes, pods  # noqa: F401

pytestmark = [pytest.mark.cluster, pytest.mark.e2e]

APP = """
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
lines = world.gather(f"rank {world.rank} of {world.size} on {socket.gethostname()}")
if world.rank == 0:
    print("\\n".join(lines), flush=True)
"""
SSH_ARGS = (
    f"-p {SSH_PORT} -i {SSH_DIR}/id_rsa -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
)
READY = {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 1}


def launch(hostfile: str) -> str:
    """The shell script that runs the program above on two ranks."""
    mpirun = ["mpirun", "--hostfile", hostfile, "-n", "2", "--prtemca", "plm_ssh_args", SSH_ARGS]
    return f"exec timeout 60 {shlex.join([*mpirun, '/opt/lockstep/bin/python', '-m', 'mpi4py', '-c', APP])}"


def test_mpirun_goes_over_ssh_from_one_pod_to_the_other(pods: AgentPods, tmp_path: Path) -> None:
    pods.apply("Secret", "ssh", stringData=key_pair(tmp_path))
    pods.apply(
        "Service", "group", spec={"clusterIP": "None", "selector": {"group": "one"}, "publishNotReadyAddresses": True}
    )
    hosts = "".join(f"{name}.group.{pods.namespace}.svc slots=1\n" for name in ("first", "second"))
    pods.apply("ConfigMap", "hosts", data={"hostfile": hosts})
    spec = group_spec(pods.namespace)
    server = {**CONTAINER, "command": sshd_command(), "readinessProbe": READY}
    pods.create("second", "", container=server, nodeName="node-2", hostname="second", **spec)
    pods.wait_ready("second")
    printed = pods.run("first", launch(HOSTFILE), container=CONTAINER, nodeName="node-1", hostname="first", **spec)
    assert said_by_ranks(printed) == ["rank 0 of 2 on first", "rank 1 of 2 on second"]


CONTAINER: dict[str, Any] = {
    "image": "lockstep-worker:dev",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    "volumeMounts": [{"name": "ssh", "mountPath": SSH_DIR}, {"name": "hosts", "mountPath": "/etc/mpi"}],
}


def group_spec(namespace: str) -> dict[str, Any]:
    return {
        "subdomain": "group",
        "labels": {"group": "one"},
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER_ID, "fsGroup": USER_ID},
        "dnsConfig": {"searches": [f"group.{namespace}.svc.cluster.local"]},
        "volumes": [
            {"name": "ssh", "secret": {"secretName": "ssh"}},
            {"name": "hosts", "configMap": {"name": "hosts"}},
        ],
    }


def test_a_real_mpijob_runs_its_ranks_and_succeeds(pods: AgentPods) -> None:
    context = {"runAsNonRoot": True, "runAsUser": USER_ID, "fsGroup": USER_ID}
    gpus = {"resources": {"limits": {"nvidia.com/gpu": 4}}}
    container = {"image": "lockstep-worker:dev", "securityContext": CONTAINER["securityContext"], **gpus}
    worker = {**container, "name": "worker", "command": sshd_command(), "readinessProbe": READY}
    launcher = {**container, "name": "launcher", "command": ["sh", "-c", launch(HOSTFILE)]}

    def replica(pod_container: dict[str, Any]) -> dict[str, Any]:
        spec = {"restartPolicy": "Never", "securityContext": context, "containers": [pod_container]}
        return {"replicas": 1, "restartPolicy": "Never", "template": {"spec": spec}}

    spec = {
        "slotsPerWorker": 1,
        "runLauncherAsWorker": True,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "sshAuthMountPath": SSH_DIR,
        "runPolicy": {"cleanPodPolicy": "All", "backoffLimit": 0},
        "mpiReplicaSpecs": {"Launcher": replica(launcher), "Worker": replica(worker)},
    }
    pods.cluster.apply(
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": "group", "namespace": pods.namespace},
            "spec": spec,
        }
    )
    pods.kubectl("wait", "--for=condition=Succeeded", "mpijob/group", "--timeout=120s")
    logs = pods.cluster.state / "pods" / "logs" / pods.namespace
    printed = next(logs.glob("group-launcher-*/launcher.log")).read_text()
    assert said_by_ranks(printed) == ["rank 0 of 2 on group-launcher", "rank 1 of 2 on group-worker-0"]


def said_by_ranks(printed: str) -> list[str]:
    """What the ranks print, in their order; mpirun may warn beside them, when ssh is quicker than it (setpgid)."""
    return sorted(line for line in printed.splitlines() if not line.startswith("["))


def key_pair(folder: Path) -> dict[str, str]:
    key = folder / "id_rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = key.with_suffix(".pub").read_text()
    return {"id_rsa": key.read_text(), "authorized_keys": public}

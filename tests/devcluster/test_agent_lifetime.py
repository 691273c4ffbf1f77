# ruff: noqa: F811 (a fixture's name is imported, and a parameter)
import os
import signal
import time
from pathlib import Path

import pytest

from devcluster.control.cluster import Cluster
from devcluster.nodes.start import start_nodes
from support.cluster.agent_pods import AgentPods, is_ready, nodes, pods, processes  # noqa: F401
from support.cluster.cluster import StartCluster, start_cluster  # noqa: F401

pytestmark = [pytest.mark.cluster, pytest.mark.e2e]
MARK = "a-process-of-a-pod-that-must-not-live-on"


def wait_gone(words: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while left := processes(words):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_all_processes_of_pods_end_with_the_agent_and_a_new_one_starts_them_anew(start_cluster: StartCluster) -> None:
    cluster = start_cluster("agent-lifetime")
    start_nodes(cluster, 1, 0)
    pods = AgentPods(cluster, "default")
    script = f"setsid sh -c 'trap \"\" TERM; while true; do sleep 0.2; done' {MARK} & exec sleep 1000"
    for user in (0, 1000):
        pods.create(f"user-{user}", script, securityContext={"runAsUser": user})
        pods.wait_ready(f"user-{user}")
    addresses = {pods.get(name)["status"]["podIP"] for name in ("user-0", "user-1000")}
    command = end_agent(cluster, signal.SIGKILL)
    wait_until_nothing_is_left(cluster)

    cluster.servers.start("agent-again", command)
    for name in ("user-0", "user-1000"):
        pods.wait(name, lambda pod: is_ready(pod) and len(processes(MARK)) >= 2)
    assert {pods.get(name)["status"]["podIP"] for name in ("user-0", "user-1000")} == addresses
    end_agent(cluster, signal.SIGTERM)
    wait_until_nothing_is_left(cluster)
    assert list((cluster.state / "pods" / "pods").iterdir()) == []


def end_agent(cluster: Cluster, number: signal.Signals) -> list[str]:
    """End the agent of one cluster and wait for that; returns its command line."""
    mine = [pid for pid in processes("-m devcluster.agent ") if str(cluster.state) in " ".join(command_of(pid))]
    (agent,) = [pid for pid in mine if "python" in command_of(pid)[0]]
    command = command_of(agent)
    os.kill(agent, number)
    deadline = time.monotonic() + 30
    while agent in processes("-m devcluster.agent "):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return command


def wait_until_nothing_is_left(cluster: Cluster) -> None:
    wait_gone(MARK)
    deadline = time.monotonic() + 20
    while "pod" in cluster.run(["ip", "-brief", "link"], capture_output=True, text=True).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    mounts = cluster.run(["cat", "/proc/self/mounts"], capture_output=True, text=True).stdout
    assert str(cluster.state / "pods") not in mounts


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def test_kubectl_shows_and_follows_a_pods_log(pods: AgentPods) -> None:
    pods.create("talks", "echo one; echo two; sleep 2; echo three")
    pods.wait_ready("talks")
    assert pods.kubectl("logs", "talks", "--tail=1") in {"two\n", "three\n"}
    assert pods.kubectl("logs", "talks", "--follow") == "one\ntwo\nthree\n"


def test_nodes_renew_their_leases(nodes: Cluster) -> None:
    first = renewed(nodes)
    deadline = time.monotonic() + 40
    while renewed(nodes) == first:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def renewed(nodes: Cluster) -> str:
    return nodes.kubectl("-n", "kube-node-lease", "get", "lease", "node-1", "-o", "jsonpath={.spec.renewTime}")

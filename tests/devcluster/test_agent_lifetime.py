# ruff: noqa: F811 (a fixture's name is imported, and a parameter)
import json
import os
import signal
import time
from pathlib import Path

import pytest

from devcluster.agent.logs import tail_offset
from devcluster.cluster import Cluster
from devcluster.nodes import start_nodes
from support.agent_pods import AgentPods, nodes, pods  # noqa: F401
from support.cluster import StartCluster, start_cluster  # noqa: F401

pytestmark = [pytest.mark.cluster, pytest.mark.e2e]
MARK = "a-process-of-a-pod-that-must-not-live-on"


def processes(words: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if words in command:
                found.append(int(entry.name))
    return found


def wait_gone(words: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while left := processes(words):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_processes_of_pods_end_with_the_agent(
    start_cluster: StartCluster, tmp_path: Path, number: signal.Signals
) -> None:
    cluster = start_cluster(f"agent-{number.name.lower()}")
    start_nodes(cluster, 1, 0)
    pods = AgentPods(cluster, "default")
    script = f"setsid sh -c 'trap \"\" TERM; while true; do sleep 0.2; done' {MARK} & exec sleep 1000"
    for user in (0, 1000):
        pods.create(f"user-{user}", script, securityContext={"runAsUser": user})
        pods.wait_ready(f"user-{user}")
    assert len(processes(MARK)) >= 2
    agent = [pid for pid in processes("-m devcluster.agent") if str(cluster.state) in command_of(pid)]
    assert agent
    for pid in agent:
        os.kill(pid, number)
    wait_gone(MARK)
    links = json.loads(cluster.run(["ip", "-json", "link"], capture_output=True, text=True).stdout)
    assert [link["ifname"] for link in links] == ["lo"]
    mounts = cluster.run(["cat", "/proc/self/mounts"], capture_output=True, text=True).stdout
    assert str(cluster.state) not in mounts


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_kubectl_shows_and_follows_a_pods_log(pods: AgentPods) -> None:
    pods.create("talks", "echo one; echo two; sleep 2; echo three")
    pods.wait_ready("talks")
    assert pods.kubectl("logs", "talks", "--tail=1") in {"two\n", "three\n"}
    assert pods.kubectl("logs", "talks", "--follow") == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("text", "lines", "wanted"),
    [("a\nb\nc\n", 2, "b\nc\n"), ("a\nb\nc", 2, "b\nc"), ("a\n", 5, "a\n"), ("a\n", 0, ""), ("", 3, "")],
)
def test_the_tail_of_a_log_is_whole_lines(tmp_path: Path, text: str, lines: int, wanted: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert text[tail_offset(path, lines) :] == wanted


def test_nodes_renew_their_leases(nodes: Cluster) -> None:
    first = renewed(nodes)
    deadline = time.monotonic() + 40
    while renewed(nodes) == first:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def renewed(nodes: Cluster) -> str:
    return nodes.kubectl("-n", "kube-node-lease", "get", "lease", "node-1", "-o", "jsonpath={.spec.renewTime}")

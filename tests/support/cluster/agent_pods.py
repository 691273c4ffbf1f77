"""Pods on a real cluster with nodes, for tests: `from support.cluster.agent_pods import AgentPods, nodes, pods`."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.control.cluster import Cluster
from support.cluster.cluster import StartCluster, ensure_nodes, start_cluster  # noqa: F401

Object = dict[str, Any]


class AgentPods:
    """Makes pods in one namespace of a cluster with nodes, and reads what became of them."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments)

    def create(self, name: str, script: str, *, container: Object | None = None, **spec: Any) -> None:
        """Make a pod whose container runs a shell script; `container` and `spec` add to both."""
        main = {"name": "main", "image": "any:dev", "command": ["sh", "-c", script], **(container or {})}
        defaults = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2}
        labels = {"app": name, **spec.pop("labels", {})}
        self.apply("Pod", name, spec={**defaults, "containers": [main], **spec}, labels=labels)

    def apply(self, kind: str, name: str, *, labels: dict[str, str] | None = None, **fields: Any) -> None:
        metadata = {"name": name, "namespace": self.namespace, "labels": labels or {}}
        self.cluster.apply({"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields})

    def get(self, name: str) -> Object:
        return dict(json.loads(self.kubectl("get", "pod", name, "-o", "json")))

    def wait(self, name: str, true: Callable[[Object], bool], timeout_s: float = 60) -> Object:
        deadline = time.monotonic() + timeout_s
        while not true(pod := self.get(name)):
            assert time.monotonic() < deadline, f"{json.dumps(pod['status'], indent=1)}\n{self.log(name)}"
            time.sleep(0.2)
        return pod

    def wait_ended(self, name: str) -> Object:
        return self.wait(name, lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"})

    def wait_ready(self, name: str) -> Object:
        return self.wait(name, is_ready)

    def run(self, name: str, script: str, **options: Any) -> str:
        """Run a script to its successful end; returns what it printed."""
        self.create(name, script, **options)
        status = self.wait_ended(name)["status"]
        assert status["phase"] == "Succeeded", (status, self.log(name))
        return self.log(name)

    def log(self, name: str, container: str = "main") -> str:
        path = self.cluster.state / "pods" / "logs" / self.namespace / name / f"{container}.log"
        return path.read_text() if path.exists() else ""


def is_ready(pod: Object) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


def state(pod: Object) -> Object:
    """The state of the pod's first container."""
    return dict(pod["status"]["containerStatuses"][0]["state"])


def processes(words: str) -> list[int]:
    """The processes of this machine, pods' ones included, whose command line has these words."""
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


@pytest.fixture(scope="session")
def nodes(start_cluster: StartCluster) -> Cluster:  # noqa: F811
    """The cluster with two nodes of four GPUs that the tests of this process share."""
    return ensure_nodes(start_cluster("nodes"))


@pytest.fixture
def pods(nodes: Cluster, request: pytest.FixtureRequest) -> Iterator[AgentPods]:
    """Pods in a new namespace, named after the test."""
    namespace = request.node.originalname.replace("_", "-").removeprefix("test-")[:50].strip("-")
    nodes.kubectl("create", "namespace", namespace)
    nodes.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={namespace}", "--timeout=60s")
    yield AgentPods(nodes, namespace)
    nodes.kubectl("delete", "namespace", namespace, "--wait=false")

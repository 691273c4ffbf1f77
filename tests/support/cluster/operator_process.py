"""The real operator as a process beside a real control plane, with the ServiceAccount and the roles of the chart."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kubernetes import client, config
from prometheus_client.parser import text_string_to_metric_families

from devcluster.control.cluster import Cluster
from lockstep_operator.clients.kube import Kube
from support.cluster.helm import render

NAMESPACE = "lockstep-system"
PATIENCE_S = 60.0
PORT = 18080
T = TypeVar("T")


def wait_for(what: str, ask: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"within {timeout_s} s it did not come true that {what}"
        time.sleep(0.1)


def connect(kubeconfig: Path) -> Kube:
    """Connect the operator's own client to a cluster."""
    configuration = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    return Kube(lambda _verb, _kind: None, configuration)


def install(cluster: Cluster, *helm_arguments: str) -> Path:
    """Install what the chart gives an operator apart from its Deployment; return credentials of its ServiceAccount."""
    objects = [item for item in render(*helm_arguments) if item["kind"] not in {"Deployment", "ConfigMap"}]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.apply(namespace, *objects)
    cluster.wait_until("the CRD is served", lambda: cluster.kubectl_succeeds("get", "servingdeployments", "-A"))
    token = cluster.kubectl("create", "token", "lockstep-operator", "-n", NAMESPACE, "--duration=8h").strip()
    admin = yaml.safe_load(cluster.kubeconfig.read_text())
    admin["users"] = [{"name": user["name"], "user": {"token": token}} for user in admin["users"]]
    path = cluster.state / f"operator{len(helm_arguments)}.kubeconfig"
    path.write_text(yaml.safe_dump(admin))
    return path


class OperatorProcess:
    """`lockstep-operator run` in the cluster's network, or another program that runs the operator."""

    def __init__(
        self, cluster: Cluster, kubeconfig: Path, command: Sequence[str] = ("lockstep_operator", "run"), **env: str
    ) -> None:
        self._cluster = cluster
        self._command = command
        self._env = {"KUBECONFIG": str(kubeconfig), "METRICS_HOST": "127.0.0.1", "METRICS_PORT": str(PORT), **env}
        self._process: subprocess.Popen[Any] | None = None
        self.log = cluster.state / "operator.log"

    def start(self) -> None:
        """Start it and wait until it is healthy."""
        argv = [sys.executable, "-m", *self._command]
        with self.log.open("ab") as log:
            self._process = self._cluster.popen(argv, env=self._env, stdout=log, stderr=log)
        wait_for("the operator is healthy", lambda: self._get("/healthz") is not None)

    def stop(self) -> None:
        """End it as a kubelet would."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)
        self._process = None

    def restart(self) -> None:
        """End it and start it again."""
        self.stop()
        self.start()

    def read_metric(self, name: str, **labels: str) -> float:
        """Sum a metric's samples that carry these labels."""
        text = self._get("/metrics")
        assert text is not None
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(
            sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def _get(self, path: str) -> str | None:
        argv = ["curl", "-sf", "--max-time", "5", f"http://127.0.0.1:{PORT}{path}"]
        answer = self._cluster.run(argv, capture_output=True, text=True)
        return str(answer.stdout) if answer.returncode == 0 else None

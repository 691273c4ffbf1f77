"""The real operator with the rights that the chart gives it: they are enough for a deployment's whole life."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.control.cluster import Cluster
from support.cluster.cluster import StartCluster, start_cluster  # noqa: F401
from support.cluster.helm import CHART

pytestmark = pytest.mark.cluster
TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def cluster(start_cluster: StartCluster) -> Cluster:  # noqa: F811
    """Shared with the other tests of the chart; their releases run no operator, because there is no node."""
    return start_cluster("charts")


def deployment(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "serving.lockstep.dev/v1alpha1",
        "kind": "ServingDeployment",
        "metadata": {"name": "recall", "namespace": namespace},
        "spec": {
            "model": {"source": "/opt/lockstep/models/recall", "servedName": "recall"},
            "image": "lockstep-worker:dev",
            "roles": [{"name": "main", "parallelism": {"tensor": 2}, "gpusPerNode": 1}],
        },
    }


def names(cluster: Cluster, kinds: str, namespace: str) -> list[str]:
    return cluster.kubectl("get", kinds, "-n", namespace, "-o", "name").split()


def wait_for(what: str, condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {TIMEOUT_S} s\n{log.read_text()}"
        time.sleep(0.5)


def write_kubeconfig(cluster: Cluster, namespace: str, account: str, path: Path) -> Path:
    """The administrator's kubeconfig with the account's token in the place of the certificate."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", account, "-n", namespace).strip()}
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def run_operator(cluster: Cluster, kubeconfig: Path, watched: str, log: Path) -> Iterator[None]:
    settings = {"KUBECONFIG": str(kubeconfig), "WATCH_NAMESPACES": watched, "METRICS_PORT": "0"}
    with log.open("wb") as output:
        command = [sys.executable, "-m", "lockstep_operator", "run"]
        process = cluster.popen(command, env=settings, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.parametrize("narrow", [False, True], ids=["cluster", "namespaced"])
def test_the_operator_makes_and_removes_a_group_with_the_charts_rights(
    cluster: Cluster, tmp_path: Path, narrow: bool
) -> None:
    release = "rights-narrow" if narrow else "rights-wide"
    namespace, log = f"{release}-work", tmp_path / "operator.log"
    cluster.kubectl("create", "namespace", namespace)
    watched = namespace if narrow else ""
    arguments = ["--set", f"watchNamespaces={{{watched}}}"] if narrow else []
    where = ["-n", release, "--create-namespace", "--take-ownership"]
    cluster.helm("install", release, str(CHART), *where, *arguments)
    kubeconfig = write_kubeconfig(cluster, release, f"{release}-lockstep-operator", tmp_path / "kubeconfig")
    with run_operator(cluster, kubeconfig, watched, log):
        cluster.apply(deployment(namespace))
        wait_for("group", lambda: len(names(cluster, "mpijobs,services", namespace)) >= 2, log)
        wait_for("status", lambda: bool(read_status(cluster, namespace).get("conditions")), log)
        wait_for("event", lambda: bool(names(cluster, "events.events.k8s.io", namespace)), log)
        cluster.kubectl("delete", "servingdeployment", "recall", "-n", namespace, f"--timeout={TIMEOUT_S:g}s")
    assert not names(cluster, "mpijobs", namespace)
    assert "forbidden" not in log.read_text().lower()


def read_status(cluster: Cluster, namespace: str) -> dict[str, Any]:
    found = json.loads(cluster.kubectl("get", "servingdeployment", "recall", "-n", namespace, "-o", "json"))
    status: dict[str, Any] = found.get("status", {})
    return status

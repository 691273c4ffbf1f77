"""The operator's process against real servers and the real mpi-operator; the test plays the kubelet."""

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep_operator.kube import DEPLOYMENTS, EVENTS, MPIJOBS, PODS, SERVICES, Kube, Object
from support.kubelet import Kubelet
from support.operator_process import OperatorProcess, wait_for

pytestmark = pytest.mark.cluster

MINIMAL: dict[str, Any] = yaml.safe_load(Path("examples/minimal.yaml").read_text())


def build(namespace: str, **spec: Any) -> Object:
    item = copy.deepcopy(MINIMAL)
    item["metadata"]["namespace"] = namespace
    item["spec"] |= {"drainTimeoutSeconds": 0, "restartPolicy": {"backoffSeconds": 0}, **spec}
    return item


def read(kube: Kube, namespace: str) -> Object:
    return kube.get(DEPLOYMENTS, namespace, "recall")


def find_condition(item: Object, kind: str) -> Object:
    conditions = item.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def is_ready(kube: Kube, namespace: str) -> bool:
    return find_condition(read(kube, namespace), "Ready").get("status") == "True"


def bring_up(kube: Kube, kubelet: Kubelet, item: Object) -> None:
    namespace = item["metadata"]["namespace"]
    kube.create(DEPLOYMENTS, item)
    wait_for("the deployment is Ready", lambda: kubelet.run_pods() and is_ready(kube, namespace))


def list_jobs(kube: Kube, namespace: str) -> list[Object]:
    return kube.list(MPIJOBS, namespace)


def test_a_deployment_becomes_an_mpijob_and_a_service_and_ready(
    operator: OperatorProcess, kube: Kube, kubelet: Kubelet, cluster_namespace: str
) -> None:
    bring_up(kube, kubelet, build(cluster_namespace))
    (job,) = list_jobs(kube, cluster_namespace)
    status = read(kube, cluster_namespace)["status"]
    assert job["metadata"]["name"] == f"recall-main-{status['revision']}-0"
    assert len(kubelet.list_pods("launcher")) == len(kubelet.list_pods("worker")) == 1
    service = kube.get(SERVICES, cluster_namespace, "recall-main")
    (launcher,) = kubelet.list_pods("launcher")
    assert service["spec"]["selector"].items() <= launcher["metadata"]["labels"].items()
    assert status["readyGroups"] == "1/1"
    assert status["groups"][0]["workers"] == [kubelet.list_pods("worker")[0]["metadata"]["uid"]]
    assert status["url"] == f"http://recall-main.{cluster_namespace}.svc:8000"


def test_a_steady_deployment_is_never_written_not_even_after_a_restart(
    operator: OperatorProcess, kube: Kube, kubelet: Kubelet, cluster_namespace: str
) -> None:
    bring_up(kube, kubelet, build(cluster_namespace))

    def snapshot() -> list[tuple[str, str, str]]:
        items = [
            (resource.kind, item["metadata"]["uid"], item["metadata"]["resourceVersion"])
            for resource in (DEPLOYMENTS, MPIJOBS, SERVICES, PODS, EVENTS)
            for item in kube.list(resource, cluster_namespace)
            if resource is not EVENTS or item["regarding"]["kind"] == "ServingDeployment"
        ]
        return sorted(items)

    def settle() -> list[tuple[str, str, str]] | None:
        before = snapshot()
        time.sleep(3)
        return before if before == snapshot() else None

    before = wait_for("nothing changes any more", settle)
    operator.restart()
    wait_for("the new process has looked", lambda: operator.read_metric("lockstep_operator_reconcile_total") >= 1)
    time.sleep(3)
    assert snapshot() == before
    assert operator.read_metric("lockstep_operator_writes_total") == 0
    assert operator.read_metric("lockstep_operator_groups", namespace=cluster_namespace, state="Ready") == 1

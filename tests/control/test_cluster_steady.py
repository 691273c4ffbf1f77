"""The operator's process beside real servers and the real mpi-operator; the test plays the kubelet."""

import time

import pytest
from support.deployments import NAME, Live, build_deployment
from support.operator_process import OperatorProcess, wait_for

from lockstep_operator.kube import DEPLOYMENTS, EVENTS, MPIJOBS, PODS, SERVICES, Kube, Resource

pytestmark = pytest.mark.cluster
Snapshot = list[tuple[str, str, str]]


def take_snapshot(kube: Kube, namespace: str) -> Snapshot:
    return sorted(
        (resource.kind, item["metadata"]["uid"], item["metadata"]["resourceVersion"])
        for resource in (DEPLOYMENTS, MPIJOBS, SERVICES, PODS, EVENTS)
        for item in kube.list(resource, namespace)
        if resource is not EVENTS or item["regarding"]["kind"] == "ServingDeployment"
    )


def test_a_deployment_becomes_an_mpijob_and_a_service_and_ready(live: Live) -> None:
    live.bring_up()
    (job,) = live.list_jobs().values()
    status = live.read()["status"]
    (launcher,) = live.kubelet.list_pods("launcher")
    (worker,) = live.kubelet.list_pods("worker")
    service = live.kube.get(SERVICES, live.namespace, "recall-main")
    assert job["metadata"]["name"] == f"recall-main-{status['revision']}-0"
    assert service["spec"]["selector"].items() <= launcher["metadata"]["labels"].items()
    assert not service["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    assert status["groups"][0]["workers"] == [worker["metadata"]["uid"]]
    assert (status["readyGroups"], status["phase"]) == ("1/1", "Ready")
    assert status["url"] == f"http://recall-main.{live.namespace}.svc:8000"


def test_a_steady_deployment_is_never_written_not_even_after_a_restart(live: Live, operator: OperatorProcess) -> None:
    live.bring_up()

    def settle() -> Snapshot | None:
        before = take_snapshot(live.kube, live.namespace)
        time.sleep(3)
        return before if before == take_snapshot(live.kube, live.namespace) else None

    before = wait_for("nothing changes any more", settle)
    operator.restart()
    wait_for("the new process has looked", lambda: operator.read_metric("lockstep_operator_reconcile_total"))
    time.sleep(3)
    assert take_snapshot(live.kube, live.namespace) == before
    assert operator.read_metric("lockstep_operator_writes_total") == 0
    assert operator.read_metric("lockstep_operator_groups", namespace=live.namespace, state="Ready") == 1


def test_a_change_at_the_service_is_put_right(live: Live) -> None:
    live.bring_up()

    def read_selector() -> dict[str, str]:
        return dict(live.kube.get(SERVICES, live.namespace, "recall-main")["spec"]["selector"])

    right = read_selector()
    live.kube.patch(SERVICES, live.namespace, "recall-main", {"spec": {"selector": {"serving.lockstep.dev/role": "x"}}})
    wait_for("the Service selects launchers again", lambda: read_selector() == right)


@pytest.mark.parametrize("resource", [MPIJOBS, SERVICES], ids=["MPIJob", "Service"])
def test_a_child_that_somebody_deletes_is_made_again(live: Live, resource: Resource) -> None:
    live.bring_up()

    def list_uids() -> set[str]:
        children = live.kube.list(resource, live.namespace, f"serving.lockstep.dev/deployment={NAME}")
        return {child["metadata"]["uid"] for child in children}

    old = list_uids()
    for child in live.kube.list(resource, live.namespace, f"serving.lockstep.dev/deployment={NAME}"):
        live.kube.delete(resource, live.namespace, child["metadata"]["name"], child["metadata"]["uid"])
    wait_for("another one is there", lambda: list_uids() - old)
    live.wait_ready()
    assert len(list_uids()) == 1


def test_scale_reads_and_writes_groups(live: Live, kube: Kube) -> None:
    live.bring_up()
    path = f"/apis/serving.lockstep.dev/v1alpha1/namespaces/{live.namespace}/servingdeployments/{NAME}/scale"
    scale = kube.call("GET", path)
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (1, 1)
    scale["spec"]["replicas"] = 3
    kube.call("PUT", path, None, scale)
    live.wait_ready()
    scale = kube.call("GET", path)
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)
    serving = kube.list(PODS, live.namespace, scale["status"]["selector"])
    assert len(serving) == 3
    live.patch(replicas=0)
    live.wait_condition("Ready", "False", "ScaledToZero")
    wait_for("no group is left", lambda: not live.list_jobs())
    live.patch(replicas=1)
    live.wait_ready()


def test_an_object_of_somebody_else_is_reported_and_never_touched(live: Live, kube: Kube) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "recall-main", "namespace": live.namespace},
        "spec": {"ports": [{"port": 1}], "selector": {"app": "theirs"}},
    }
    theirs = kube.create(SERVICES, foreign)
    kube.create(DEPLOYMENTS, build_deployment(live.namespace))
    condition = live.wait_condition("Degraded", "True", "Conflict")
    assert "Service recall-main" in condition["message"]
    assert live.find_condition("Ready")["reason"] == "Conflict"
    assert kube.get(SERVICES, live.namespace, "recall-main") == theirs
    live.delete()
    live.wait_gone()
    assert kube.get(SERVICES, live.namespace, "recall-main") == theirs

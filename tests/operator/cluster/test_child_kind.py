"""Kinds of children of the test's own on the real API server: made, put right and removed by the operator's own code,
watched by it, and one that no API server serves.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from devcluster.control.cluster import Cluster
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.clients.kube import Kube
from lockstep_operator.clients.launcher import Launchers
from lockstep_operator.kinds import DEPLOYMENTS, Object
from lockstep_operator.metrics import Metrics
from lockstep_operator.reconcile import Reconciler
from support.cluster.deployments import NAME, Live, build_deployment
from support.cluster.kubelet import Kubelet
from support.cluster.more_children import LEASE, SETTINGS
from support.cluster.operator_process import OperatorProcess, wait_for

pytestmark = pytest.mark.cluster
CHILD = f"{NAME}-settings"
TESTS = Path(__file__).parents[2]


@pytest.fixture
def reconciler(operator: OperatorProcess, kube: Kube) -> Iterator[Reconciler]:
    """A reconciler that knows the kind; the operator that does not know it stands still meanwhile."""
    operator.stop()
    yield Reconciler(kube, Launchers(), Metrics(CollectorRegistry()), (*CHILDREN, SETTINGS))
    operator.start()


@pytest.fixture
def namespace(reconciler: Reconciler, kube: Kube, cluster_namespace: str) -> str:
    """A namespace with the example and all its children."""
    kube.create(DEPLOYMENTS, build_deployment(cluster_namespace))
    settle(reconciler, cluster_namespace)
    return cluster_namespace


def settle(reconciler: Reconciler, namespace: str) -> None:
    for _ in range(5):
        reconciler.reconcile((namespace, NAME))


def read(kube: Kube, namespace: str) -> Object:
    return kube.get(SETTINGS.kind, namespace, CHILD)


def test_it_is_made_and_belongs_to_the_deployment(kube: Kube, namespace: str) -> None:
    item = read(kube, namespace)
    deployment = kube.get(DEPLOYMENTS, namespace, NAME)
    (owner,) = item["metadata"]["ownerReferences"]
    assert owner["uid"] == deployment["metadata"]["uid"]
    assert item["data"] == {"model": NAME}


def test_it_is_put_right_and_what_others_added_stays(reconciler: Reconciler, kube: Kube, namespace: str) -> None:
    kube.patch(SETTINGS.kind, namespace, CHILD, {"data": {"model": "x", "theirs": "1"}})
    settle(reconciler, namespace)
    assert read(kube, namespace)["data"] == {"model": NAME, "theirs": "1"}
    version = read(kube, namespace)["metadata"]["resourceVersion"]
    settle(reconciler, namespace)
    assert read(kube, namespace)["metadata"]["resourceVersion"] == version


def test_it_goes_when_the_spec_asks_for_it_no_more(reconciler: Reconciler, kube: Kube, namespace: str) -> None:
    kube.patch(DEPLOYMENTS, namespace, NAME, {"spec": {"replicas": 0}})
    settle(reconciler, namespace)
    assert kube.find(SETTINGS.kind, namespace, CHILD) is None


def test_one_of_somebody_else_is_reported_and_never_touched(
    reconciler: Reconciler, kube: Kube, cluster_namespace: str
) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CHILD, "namespace": cluster_namespace}}
    made = kube.create(SETTINGS.kind, theirs)
    kube.create(DEPLOYMENTS, build_deployment(cluster_namespace))
    settle(reconciler, cluster_namespace)
    conditions = kube.get(DEPLOYMENTS, cluster_namespace, NAME)["status"]["conditions"]
    degraded = next(condition for condition in conditions if condition["type"] == "Degraded")
    assert degraded["reason"] == "Conflict"
    assert f"ConfigMap {CHILD}" in degraded["message"]
    assert read(kube, cluster_namespace) == made


@pytest.fixture
def more(
    request: pytest.FixtureRequest, operator: OperatorProcess, cluster: Cluster, kube: Kube, cluster_namespace: str
) -> Iterator[Live]:
    """The example, looked after by an operator process that has more kinds; the test's parameter names them."""
    operator.stop()
    command = ("support.cluster.more_operator", *request.param)
    process = OperatorProcess(cluster, cluster.kubeconfig, command, PYTHONPATH=str(TESTS), RESYNC_SECONDS="86400")
    process.start()
    live = Live(kube, Kubelet(kube, cluster_namespace), cluster_namespace)
    live.bring_up()
    yield live
    live.remove()
    process.stop()
    operator.start()


with_gangs = pytest.mark.parametrize("more", [["Gang"]], indirect=True, ids=["with gangs"])
watched = pytest.mark.parametrize("more", [["ConfigMap", "Lease"]], indirect=True, ids=["with settings and a lease"])


@with_gangs
def test_groups_go_on_without_a_kind_that_is_not_served(more: Live) -> None:
    condition = more.wait_condition("PlatformReady", "False", "ChildAPIMissing")
    assert "gangs.example.dev/v1 Gang" in condition["message"]
    assert more.find_condition("Degraded")["reason"] == "ChildAPIMissing"
    assert more.find_condition("Available")["status"] == "True"
    more.patch(replicas=2)
    more.wait_ready()
    assert more.read()["status"]["readyGroups"] == "2/2"


@watched
def test_an_event_of_a_core_kind_wakes_its_deployment(more: Live) -> None:
    more.kube.patch(SETTINGS.kind, more.namespace, CHILD, {"data": {"model": "x"}})
    wait_for("it is put right", lambda: read(more.kube, more.namespace)["data"] == {"model": NAME}, timeout_s=10)


@watched
def test_an_event_of_another_kind_wakes_its_deployment(more: Live) -> None:
    def find() -> Object | None:
        return more.kube.find(LEASE.kind, more.namespace, f"{NAME}-lease")

    made = wait_for("the Lease is there", find)
    more.kube.delete(LEASE.kind, more.namespace, f"{NAME}-lease", made["metadata"]["uid"])
    again = wait_for("it is made again", find, timeout_s=10)
    assert again["metadata"]["uid"] != made["metadata"]["uid"]

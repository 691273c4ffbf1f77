"""A kind of child of the test's own on the real API server: made, put right and removed by the operator's own code."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.clients.kube import Kube
from lockstep_operator.clients.launcher import Launchers
from lockstep_operator.kinds import DEPLOYMENTS, Object
from lockstep_operator.metrics import Metrics
from lockstep_operator.reconcile import Reconciler
from support.cluster.deployments import NAME, build_deployment
from support.cluster.operator_process import OperatorProcess
from support.cluster.settings_child import SETTINGS

pytestmark = pytest.mark.cluster
CHILD = f"{NAME}-settings"


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

"""An object that was stored under the earlier CRD, with exactly one role, goes on under the present one."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.control.cluster import Cluster
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.clients.kube import Kube
from lockstep_operator.errors import KubeError
from lockstep_operator.kinds import DEPLOYMENTS, PODS
from support.cluster.cluster import StartCluster
from support.cluster.deployments import Live, build_deployment, build_two_roles
from support.cluster.kubelet import Kubelet
from support.cluster.operator_process import OperatorProcess, connect, install, wait_for

pytestmark = pytest.mark.cluster
EARLIER_CRD = json.loads((Path(__file__).parent / "crd_of_one_role.json").read_text())
REVISION = "8387dae9"
"""Of the test's deployment, as the operator of the earlier CRD computed it."""
NAMESPACE = "upgrade"


@pytest.fixture
def upgrade(start_cluster: StartCluster) -> Iterator[tuple[Cluster, OperatorProcess]]:
    """A cluster with the earlier CRD, and an operator that does not run yet."""
    cluster = start_cluster("upgrade")
    cluster.kubectl("create", "namespace", NAMESPACE)
    operator = OperatorProcess(cluster, install(cluster))
    cluster.apply(EARLIER_CRD)
    wait_for("the earlier CRD is in force", lambda: not takes_two_roles(connect(cluster.kubeconfig)))
    yield cluster, operator
    operator.stop()


def takes_two_roles(kube: Kube) -> bool:
    """Whether the API server would take a deployment of two roles."""
    item = build_deployment(NAMESPACE, roles=build_two_roles())
    item["metadata"]["name"] = "other"
    try:
        kube.call("POST", DEPLOYMENTS.build_path(NAMESPACE), {"dryRun": "All"}, item)
    except KubeError as error:
        assert "exactly one role" in error.message
        return False
    return True


def take_snapshot(kube: Kube) -> list[tuple[str, str, str]]:
    kinds = (DEPLOYMENTS, PODS, *(child.kind for child in CHILDREN))
    items = [(kind, item["metadata"]) for kind in kinds for item in kube.list(kind, NAMESPACE)]
    return sorted((kind.name, metadata["uid"], metadata["resourceVersion"]) for kind, metadata in items)


def test_an_object_of_the_earlier_crd_is_kept_without_a_write(upgrade: tuple[Cluster, OperatorProcess]) -> None:
    cluster, operator = upgrade
    kube = connect(cluster.kubeconfig)
    live = Live(kube, Kubelet(kube, NAMESPACE), NAMESPACE)
    operator.start()
    live.bring_up()
    assert live.read()["status"]["revision"] == REVISION
    jobs = set(live.list_jobs())
    time.sleep(3)
    operator.stop()
    before, spec = take_snapshot(kube), live.read()["spec"]

    install(cluster)
    wait_for("the present CRD is in force", lambda: takes_two_roles(kube))
    operator.start()
    wait_for("the operator has looked", lambda: operator.read_metric("lockstep_operator_reconcile_total"))
    time.sleep(3)
    assert take_snapshot(kube) == before
    assert operator.read_metric("lockstep_operator_writes_total") == 0
    assert live.read()["spec"] == spec

    live.patch(roles=build_two_roles())
    live.wait_ready()
    assert jobs < set(live.list_jobs())
    assert [role["readyReplicas"] for role in live.read()["status"]["roles"]] == [1, 1]
    live.remove()

"""An operator with nothing but a Role in one namespace, in a cluster where the MPIJob API comes and goes."""

import json
from collections.abc import Iterator

import pytest

from devcluster.control.cluster import Cluster
from lockstep_operator.kinds import DEPLOYMENTS
from support.cluster.cluster import StartCluster
from support.cluster.deployments import Live, build_deployment
from support.cluster.kubelet import Kubelet
from support.cluster.operator_process import OperatorProcess, connect, install, wait_for

pytestmark = pytest.mark.cluster
CRD = "mpijobs.kubeflow.org"


@pytest.fixture(scope="module")
def platform(start_cluster: StartCluster) -> Iterator[Cluster]:
    cluster = start_cluster("platform")
    for namespace in ("watched", "other"):
        cluster.kubectl("create", "namespace", namespace)
    kubeconfig = install(cluster, "--set", "watchNamespaces={watched}")
    operator = OperatorProcess(cluster, kubeconfig, WATCH_NAMESPACES="watched")
    operator.start()
    yield cluster
    operator.stop()
    assert "Traceback" not in operator.log.read_text()


@pytest.fixture
def watched(platform: Cluster) -> Iterator[Live]:
    kube = connect(platform.kubeconfig)
    deployment = Live(kube, Kubelet(kube, "watched"), "watched")
    yield deployment
    deployment.remove()


def test_pods_of_others_are_never_received(watched: Live, platform: Cluster) -> None:
    """kopf would complain in the log about a pod without our labels, and the log is looked through at the end."""
    platform.kubectl("wait", "--for=create", "serviceaccount/default", "-n", "watched", "--timeout=60s")
    platform.kubectl("run", "stranger", "-n", "watched", "--image=stranger")
    watched.bring_up()


def test_a_role_in_the_namespace_is_enough_and_other_namespaces_are_left_alone(watched: Live) -> None:
    watched.kube.create(DEPLOYMENTS, build_deployment("other"))
    watched.bring_up()
    other = watched.kube.get(DEPLOYMENTS, "other", "recall")
    assert "status" not in other
    assert "finalizers" not in other["metadata"]


def test_a_missing_mpijob_api_is_told_and_the_deployment_goes_on_when_it_comes(
    watched: Live, platform: Cluster
) -> None:
    crd = json.loads(platform.kubectl("get", "crd", CRD, "-o", "json"))
    platform.kubectl("delete", "crd", CRD, "--timeout=60s")
    watched.kube.create(DEPLOYMENTS, build_deployment("watched"))
    condition = watched.wait_condition("PlatformReady", "False", "MPIJobCRDMissing")
    assert "install kubeflow mpi-operator" in condition["message"]
    platform.apply(
        {"apiVersion": crd["apiVersion"], "kind": crd["kind"], "metadata": {"name": CRD}, "spec": crd["spec"]}
    )
    wait_for("the deployment is Ready", lambda: watched.kubelet.run_pods() and watched.is_ready(), timeout_s=120)

from collections.abc import Iterator

import pytest

from devcluster.control.cluster import Cluster
from lockstep_operator.clients.kube import Kube
from support.cluster.cluster import cluster, cluster_namespace, start_cluster  # noqa: F401
from support.cluster.deployments import Live
from support.cluster.kubelet import Kubelet
from support.cluster.operator_process import OperatorProcess, connect, install


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> Iterator[OperatorProcess]:  # noqa: F811
    process = OperatorProcess(cluster, install(cluster))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def kube(cluster: Cluster) -> Kube:  # noqa: F811
    return connect(cluster.kubeconfig)


@pytest.fixture
def live(operator: OperatorProcess, kube: Kube, cluster_namespace: str) -> Iterator[Live]:  # noqa: F811
    """The example in a namespace of its own; whatever is left of it is gone before the next test."""
    deployment = Live(kube, Kubelet(kube, cluster_namespace), cluster_namespace)
    yield deployment
    deployment.remove()

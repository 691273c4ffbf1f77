"""Real clusters for tests: started at first use, one set per test process, ended with the session.

Use: import the fixtures in the conftest.py of the tests' folder:
`from support.cluster.cluster import cluster, start_cluster`.
"""

import uuid
from collections.abc import Callable, Iterator

import pytest

from devcluster.control.cluster import Cluster
from devcluster.nodes.start import start_nodes

StartCluster = Callable[[str], Cluster]
_clusters = pytest.StashKey[dict[str, Cluster]]()


@pytest.fixture(scope="session")
def start_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StartCluster:
    """Gives the running cluster of that name; starts it when a name is asked for the first time in this process."""
    config = request.config
    # Each module that imports this fixture has its own copy of it; the stash is what they share.
    clusters = config.stash.setdefault(_clusters, {})

    def start(name: str) -> Cluster:
        if name not in clusters:
            cluster = Cluster(name, tmp_path_factory.mktemp("cluster"))
            cluster.start()
            config.add_cleanup(cluster.stop)
            clusters[name] = cluster
        return clusters[name]

    return start


@pytest.fixture(scope="session")
def cluster(start_cluster: StartCluster) -> Cluster:
    """The control plane that the tests of this process share; it has no nodes. Work in a namespace of your own."""
    return start_cluster("shared")


@pytest.fixture(scope="session")
def cluster_with_nodes(start_cluster: StartCluster) -> Cluster:
    """A cluster with two nodes of four GPUs each, Services and DNS, which runs pods as processes."""
    return ensure_nodes(start_cluster("nodes"))


def ensure_nodes(cluster: Cluster) -> Cluster:
    """Starts two nodes of four GPUs each, unless another fixture of this process did."""
    if not cluster.kubectl("get", "nodes", "-o", "name"):
        start_nodes(cluster, 2, 4)
    return cluster


@pytest.fixture
def cluster_namespace(cluster: Cluster) -> Iterator[str]:
    """A new, empty Kubernetes namespace in the shared cluster, with its default ServiceAccount."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={name}", "--timeout=60s")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")

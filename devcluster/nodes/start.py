"""Gives a cluster nodes that run pods as processes, and with them Services and DNS."""

import sys
from pathlib import Path

from devcluster.control.cluster import Cluster
from devcluster.control.servers import ServerPlan
from devcluster.network import addresses
from devcluster.network.addresses import DNS_IP, Node
from devcluster.nodes.images import prepare_images
from devcluster.nodes.services import start_network


def start_nodes(cluster: Cluster, count: int, gpus_per_node: int, images: Path | None = None) -> list[Node]:
    """Starts the node agent, kube-proxy and DNS; returns when all nodes are Ready.

    Args:
        cluster: a running cluster without nodes.
        count: of nodes, 1 to 200.
        gpus_per_node: how many `nvidia.com/gpu` each node claims to have.
        images: the file that says what stands for each image; made by `prepare_images` by default.

    Raises:
        DevclusterError: a process ended, or the nodes did not become Ready.
    """
    nodes = addresses.nodes(count)
    for node in nodes:
        cluster.run(["ip", "address", "add", f"{node.ip}/32", "dev", "lo"], check=True)
    plan = _agent(cluster, nodes, gpus_per_node, images or prepare_images(cluster.state))
    cluster.start_server(plan)
    names = [f"node/{node.name}" for node in nodes]
    cluster.wait_until("the agent registered its nodes", lambda: cluster.kubectl_succeeds("get", *names))
    start_network(cluster, nodes[0].name)
    cluster.kubectl("wait", "--for=condition=Ready", *names, "--timeout=60s")
    return nodes


def _agent(cluster: Cluster, nodes: list[Node], gpus: int, images: Path) -> ServerPlan:
    kubeconfig = cluster.pki.kubeconfig("admin")
    argv = [sys.executable, "-m", "devcluster.agent", f"--kubeconfig={kubeconfig}", f"--images={images}"]
    argv += [f"--state-dir={cluster.state / 'pods'}", f"--gpus={gpus}", f"--dns={DNS_IP}"]
    argv += [f"--node={node.name}={node.ip},{node.pod_cidr}" for node in nodes]
    return ServerPlan("agent", argv, None)

"""What makes Services reachable once there is a node: kube-proxy, and DNS behind a Service of its own."""

import sys
from typing import Any

from devcluster.control.cluster import Cluster
from devcluster.control.servers import ServerPlan, proxy
from devcluster.network.addresses import API_IP, DNS_IP

_DNS_NAME = {"name": "kube-dns", "namespace": "kube-system"}


def start_network(cluster: Cluster, node_name: str) -> None:
    """Starts kube-proxy, which waits for the node's object, and DNS."""
    hosts = cluster.state / "dns.hosts"
    kubeconfig = cluster.pki.kubeconfig("admin")
    argv = [sys.executable, "-m", "devcluster.nodes.dns", f"--kubeconfig={kubeconfig}", f"--listen={API_IP}"]
    cluster.apply(*dns_objects())
    cluster.start_server(ServerPlan("dns", [*argv, f"--hosts={hosts}"], None))
    cluster.start_server(proxy(cluster.tools, cluster.pki, cluster.state, node_name))


def dns_objects() -> list[dict[str, Any]]:
    """The Service `kube-dns` at its usual address and the endpoint behind it, which is no pod."""
    ports = [
        {"name": name, "protocol": protocol, "port": 53} for name, protocol in (("dns", "UDP"), ("dns-tcp", "TCP"))
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _DNS_NAME,
        "spec": {"clusterIP": DNS_IP, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**_DNS_NAME, "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [API_IP], "conditions": {"ready": True}}],
        "ports": ports,
    }
    return [service, endpoints]

"""The addresses inside a cluster's network namespace; the same in every cluster, for none of them can be left."""

from dataclasses import dataclass

SERVICE_CIDR = "10.96.0.0/16"
POD_CIDR = "10.244.0.0/16"
API_IP = "10.10.0.1"
"""Advertised by the API server, so that the `kubernetes` Service has an endpoint."""
KUBERNETES_SERVICE_IP = "10.96.0.1"
DNS_IP = "10.96.0.10"
DNS_DOMAIN = "cluster.local"


@dataclass(frozen=True)
class Node:
    """A node that the agent plays: its name, its own address and the range of its pods."""

    name: str
    ip: str
    pod_cidr: str


def nodes(count: int) -> list[Node]:
    """`count` nodes (1 to 200), `node-1` and on.

    Raises:
        ValueError: `count` is out of range.
    """
    if not 1 <= count <= 200:
        raise ValueError(f"count of nodes is {count}; it must lie between 1 and 200")
    return [Node(f"node-{n}", f"10.10.0.{10 + n}", f"10.244.{n}.0/24") for n in range(1, count + 1)]

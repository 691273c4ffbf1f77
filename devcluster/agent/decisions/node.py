"""Pure: the Node and Lease objects of one node that pretends to be a GB200 machine."""

from __future__ import annotations

import os
import platform

from devcluster.agent.settings import NodeSettings
from devcluster.kube.objects import Object

KUBELET_PORT = 10250
NODES_PER_CLIQUE = 18
NVLINK_DOMAIN = "8f3c2b1a-6d54-4e0f-9a7b-1c2d3e4f5a6b"
"""The NVLink domain that all nodes say to belong to; the GPU operator's label is `<domain>.<clique>`."""
LEASE_S = 40


def build_node(node: NodeSettings, index: int) -> Object:
    """Build what registers a node; a rack of 18 nodes is one clique."""
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/arch": arch,
        "kubernetes.io/os": "linux",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-GB200",
        "nvidia.com/gpu.clique": f"{NVLINK_DOMAIN}.{index // NODES_PER_CLIQUE}",
    }
    spec = {"podCIDR": str(node.pod_cidr), "podCIDRs": [str(node.pod_cidr)]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "labels": labels}, "spec": spec}


def build_node_status(node: NodeSettings, *, gpus: int, memory_kib: int, now: str) -> Object:
    """Build a node's status; `memory_kib` is the machine's, which every node claims for itself."""
    resources = {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory_kib}Ki",
        "pods": "110",
        "ephemeral-storage": "100Gi",
        "nvidia.com/gpu": str(gpus),
    }
    return {
        "capacity": resources,
        "allocatable": resources,
        # No address of type Hostname: the API server would prefer it for logs, and no name server knows it.
        "addresses": [{"type": "InternalIP", "address": node.address}],
        "conditions": [_ready(now)],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
        "nodeInfo": _node_info(node.name),
    }


def _ready(now: str) -> Object:
    words = {"reason": "AgentReady", "message": "the node agent is running pods"}
    return {"type": "Ready", "status": "True", "lastHeartbeatTime": now, **words}


def _node_info(name: str) -> Object:
    return {
        "machineID": name,
        "systemUUID": name,
        "bootID": name,
        "kernelVersion": platform.release(),
        "osImage": "devcluster",
        "containerRuntimeVersion": "bubblewrap://1",
        "kubeletVersion": "v1.36.3",
        "kubeProxyVersion": "v1.36.3",
        "operatingSystem": "linux",
        "architecture": "arm64" if platform.machine() == "aarch64" else "amd64",
    }


def build_lease(name: str, now: str) -> Object:
    """Build the heartbeat that keeps a node Ready; `now` has microseconds."""
    spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": now}
    metadata = {"name": name, "namespace": "kube-node-lease"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

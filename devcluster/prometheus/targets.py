"""The pods of the cluster as Prometheus's own discovery would describe them: pure.

Debian builds Prometheus without its Kubernetes discovery. So `discovery.py` writes what that would have found, with the
same `__meta_kubernetes_*` labels, to a file that Prometheus watches; all relabelling stays Prometheus's.
"""

import json
import re
from collections.abc import Iterable, Iterator

from devcluster.kube.objects import Object

_META = "__meta_kubernetes"


def targets_file(pods: Iterable[Object]) -> str:
    """The content of a `file_sd_configs` file: a target for each declared port of each pod with an address."""
    groups = [group for pod in pods if pod.get("status", {}).get("podIP") for group in _ports(pod)]
    groups.sort(key=lambda group: (group["labels"][f"{_META}_pod_uid"], group["targets"]))
    return json.dumps(groups, indent=1)


def _ports(pod: Object) -> Iterator[Object]:
    common = _pod_labels(pod)
    address = pod["status"]["podIP"]
    for container in _containers(pod["spec"]):
        for port in container.get("ports", []):
            labels = {
                **common,
                f"{_META}_pod_container_name": container["name"],
                f"{_META}_pod_container_port_name": port.get("name", ""),
                f"{_META}_pod_container_port_number": str(port["containerPort"]),
            }
            yield {"targets": [f"{address}:{port['containerPort']}"], "labels": labels}


def _containers(spec: Object) -> Iterator[Object]:
    yield from spec["containers"]
    yield from (item for item in spec.get("initContainers", []) if item.get("restartPolicy") == "Always")


def _pod_labels(pod: Object) -> dict[str, str]:
    metadata, status = pod["metadata"], pod["status"]
    ready = [item["status"] for item in status.get("conditions", []) if item["type"] == "Ready"]
    labels = {
        f"{_META}_namespace": metadata["namespace"],
        f"{_META}_pod_name": metadata["name"],
        f"{_META}_pod_uid": metadata["uid"],
        f"{_META}_pod_ip": status["podIP"],
        f"{_META}_pod_phase": status.get("phase", ""),
        f"{_META}_pod_ready": (ready or ["unknown"])[0].lower(),
        f"{_META}_pod_node_name": pod["spec"].get("nodeName", ""),
    }
    for key, value in metadata.get("labels", {}).items():
        labels[f"{_META}_pod_label_{_sanitized(key)}"] = value
        labels[f"{_META}_pod_labelpresent_{_sanitized(key)}"] = "true"
    return labels


def _sanitized(key: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)

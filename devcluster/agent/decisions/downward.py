"""Pure: what the downward API (`fieldRef`, `resourceFieldRef`) says about a pod."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal

from devcluster.agent.errors import ConfigError
from devcluster.kube.objects import Object

SUFFIXES = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]$")


def read_field(pod: Object, path: str, *, pod_ip: str, host_ip: str) -> str:
    """Read one `fieldPath`; a label or annotation that is not there is empty.

    Raises:
        ConfigError: the path is not one that the downward API has.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if match := KEYED.match(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
        "metadata.labels": _lines(metadata.get("labels") or {}),
        "metadata.annotations": _lines(metadata.get("annotations") or {}),
    }
    if path not in known:
        raise ConfigError(f"fieldPath {path!r}: not known to the downward API")
    return str(known[path])


def read_resource(pod: Object, reference: Mapping[str, str], container: Object, allocatable: Mapping[str, str]) -> str:
    """Read one `resourceFieldRef`; a limit that is not set is what the node can give.

    Args:
        pod: searched for `containerName` where the reference has one.
        reference: the `resourceFieldRef`.
        container: whose resources are meant when no container is named.
        allocatable: the node's resources.
    """
    name = reference.get("containerName")
    if name:
        every = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
        container = next(candidate for candidate in every if candidate["name"] == name)
    kind, _, resource = reference["resource"].partition(".")
    amounts = (container.get("resources") or {}).get(kind) or {}
    fallback = allocatable.get(resource, "0") if kind == "limits" else "0"
    amount = parse_quantity(str(amounts.get(resource, fallback)))
    divisor = parse_quantity(str(reference.get("divisor") or "1")) or Decimal(1)
    return str(math.ceil(amount / divisor))


def parse_quantity(text: str) -> Decimal:
    """Parse a Kubernetes quantity, e.g. `500m`, `2Gi` or `1e3`."""
    match = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", text)
    if match is None or match[2] not in SUFFIXES:
        raise ConfigError(f"quantity {text!r}: expected a number and one of {', '.join(s for s in SUFFIXES if s)}")
    return Decimal(match[1]) * SUFFIXES[match[2]]


def _lines(pairs: Mapping[str, str]) -> str:
    escaped = (value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for value in pairs.values())
    return "\n".join(f'{key}="{value}"' for key, value in sorted(zip(pairs, escaped, strict=True)))

"""Pure: which files a volume holds, and where a container's mounts come from.

Volumes live in a directory of the pod; memory-backed ones are mounted there by the pod's first process.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster.agent.decisions.downward import read_field, read_resource
from devcluster.agent.decisions.environment import Surroundings, expand
from devcluster.agent.decisions.sandbox import Mount
from devcluster.agent.decisions.sources import token_key
from devcluster.agent.errors import ConfigError, UnsupportedPod
from devcluster.kube.objects import Object

FILLED = ("configMap", "secret", "projected", "downwardAPI")
KINDS = ("emptyDir", "hostPath", *FILLED)


@dataclass(frozen=True, slots=True)
class File:
    """One file of a volume, at a path relative to the volume."""

    path: str
    data: bytes
    mode: int


def check_pod(pod: Object) -> None:
    """Refuse what this agent does not have, rather than run something else.

    Raises:
        UnsupportedPod: names the field.
    """
    spec = pod["spec"]
    for volume in spec.get("volumes", []):
        if not any(kind in volume for kind in KINDS):
            raise UnsupportedPod(f"volume {volume['name']}: only {', '.join(KINDS)} work here")
    for field in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "resourceClaims"):
        if spec.get(field):
            raise UnsupportedPod(f"spec.{field}: does not work here")
    for container in spec.get("initContainers", []):
        if container.get("restartPolicy") == "Always":
            raise UnsupportedPod(f"initContainers {container['name']}: restartPolicy Always does not work here")


def is_memory(volume: Object) -> bool:
    """Say whether a volume lives in memory."""
    return bool((volume.get("emptyDir") or {}).get("medium") == "Memory")


def is_filled(volume: Object) -> bool:
    """Say whether a volume's files come from the API."""
    return any(kind in volume for kind in FILLED)


def volume_files(volume: Object, around: Surroundings) -> list[File]:
    """List a filled volume's files.

    Raises:
        ConfigError: something that is not optional is missing; reason `FailedMount`.
    """
    whole = volume.get("projected")
    parts = whole.get("sources", []) if whole else [volume]
    default = next(volume[kind] for kind in FILLED if kind in volume).get("defaultMode", 0o644)
    try:
        return [file for part in parts for file in _part_files(part, default, around)]
    except ConfigError as error:
        raise ConfigError(f"volume {volume['name']}: {error}", reason="FailedMount") from error


def container_mounts(container: Object, pod: Object, volumes: Path, env: Mapping[str, str]) -> Iterator[Mount]:
    """List a container's volume mounts; `volumes` is the pod's directory of volumes."""
    by_name = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        volume = by_name[mount["name"]]
        source = volume["hostPath"]["path"] if "hostPath" in volume else str(volumes / mount["name"])
        inner = mount.get("subPath") or expand(mount.get("subPathExpr", ""), env)
        if ".." in inner.split("/"):
            raise ConfigError(f"volumeMount {mount['mountPath']}: subPath {inner!r} leaves the volume")
        yield Mount(
            posixpath.join(source, inner) if inner else source, mount["mountPath"], _is_read_only(mount, volume)
        )


def _is_read_only(mount: Object, volume: Object) -> bool:
    """A filled volume is read-only whatever its mount says, as in the kubelet."""
    return bool(mount.get("readOnly", False)) or is_filled(volume)


def _part_files(part: Object, default: int, around: Surroundings) -> Iterable[File]:
    if source := part.get("configMap"):
        return _data_files("configmap", source["name"], source, default, around)
    if source := part.get("secret"):
        return _data_files("secret", source.get("secretName") or source["name"], source, default, around)
    if source := part.get("downwardAPI"):
        return _downward_files(source, default, around)
    if source := part.get("serviceAccountToken"):
        token = around.sources.tokens[token_key(source)]
        return [File(source["path"], token.encode(), default)]
    raise ConfigError(f"projected source {sorted(part)} is not known", reason="FailedMount")


def _data_files(kind: str, name: str, source: Object, default: int, around: Surroundings) -> Iterator[File]:
    optional = source.get("optional", False)
    data = around.sources.entry(kind, name, optional=optional)
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    for item in items:
        if item["key"] in data:
            yield File(item["path"], data[item["key"]], item.get("mode", default))
        elif not optional:
            raise ConfigError(f"{kind} {name} has no key {item['key']}")


def _downward_files(source: Object, default: int, around: Surroundings) -> Iterator[File]:
    for item in source.get("items", []):
        if field := item.get("fieldRef"):
            text = read_field(around.pod, field["fieldPath"], pod_ip=around.pod_ip, host_ip=around.host_ip)
        else:
            text = read_resource(around.pod, item["resourceFieldRef"], {}, around.allocatable)
        yield File(item["path"], text.encode(), item.get("mode", default))

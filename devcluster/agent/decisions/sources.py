"""Pure: what a pod takes from other objects (ConfigMaps, Secrets, Services, ServiceAccount tokens), at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from devcluster.agent.errors import ConfigError
from devcluster.kube.objects import Object

TokenKey = tuple[str, int]
"""(audience, expirationSeconds)"""


@dataclass(frozen=True, slots=True)
class Sources:
    """One moment's values: objects by name (None: there is none), data decoded to bytes."""

    configmaps: Mapping[str, Mapping[str, bytes] | None] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, bytes] | None] = field(default_factory=dict)
    tokens: Mapping[TokenKey, str] = field(default_factory=dict)
    services: tuple[Object, ...] = ()
    """The Services of the pod's namespace, then `default/kubernetes`."""

    def entry(self, kind: str, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return an object's data; `kind` is `configmap` or `secret`.

        Raises:
            ConfigError: there is no such object, and it is not optional.
        """
        found = (self.configmaps if kind == "configmap" else self.secrets).get(name)
        if found is None and not optional:
            raise ConfigError(f'{kind} "{name}" not found')
        return found or {}


def find_references(pod: Object) -> Iterator[tuple[str, str]]:
    """Find every (kind, name) of a ConfigMap or Secret that the pod takes values or files from."""
    spec = pod["spec"]
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        for source in container.get("envFrom", []):
            yield from _named(source, "configMapRef", "secretRef")
        for variable in container.get("env", []):
            yield from _named(variable.get("valueFrom", {}), "configMapKeyRef", "secretKeyRef")
    for volume in spec.get("volumes", []):
        for source in [volume, *volume.get("projected", {}).get("sources", [])]:
            yield from _named(source, "configMap", "secret")


def find_token_requests(pod: Object) -> Iterator[TokenKey]:
    """Find every token that the pod's projected volumes ask for."""
    for volume in pod["spec"].get("volumes", []):
        for source in volume.get("projected", {}).get("sources", []):
            if token := source.get("serviceAccountToken"):
                yield token_key(token)


def token_key(request: Mapping[str, Any]) -> TokenKey:
    """Identify one `serviceAccountToken` source."""
    return request.get("audience", ""), int(request.get("expirationSeconds", 3600))


def _named(holder: Object, configmap: str, secret: str) -> Iterator[tuple[str, str]]:
    if reference := holder.get(configmap):
        yield "configmap", reference["name"]
    if reference := holder.get(secret):
        yield "secret", reference.get("name") or reference["secretName"]

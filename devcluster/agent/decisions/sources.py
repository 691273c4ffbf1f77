"""What a pod takes from other objects: ConfigMaps, Secrets, Services and ServiceAccount tokens, read from the API.

`read_sources` reads all of it at one moment, so that everything that follows is pure.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from devcluster.agent.client import ApiClient, ApiError, Object
from devcluster.agent.errors import ConfigError

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


class SourceReader:
    """Reads one pod's sources again and again; keeps tokens until most of their life is over."""

    def __init__(self, client: ApiClient, pod: Object) -> None:
        self._client = client
        self._pod = pod
        self._names = set(find_references(pod))
        self._keys = set(find_token_requests(pod))
        self._tokens: dict[TokenKey, tuple[float, str]] = {}

    async def read(self) -> Sources:
        """Read everything that the pod names.

        Raises:
            ConfigError: the API server refused or was away; what is merely missing is for its user to judge.
        """
        try:
            return await self._read()
        except (ApiError, httpx.TransportError) as error:
            raise ConfigError(f"cannot read what the pod needs: {error or type(error).__name__}") from error

    async def _read(self) -> Sources:
        namespace = self._pod["metadata"]["namespace"]
        core = f"/api/v1/namespaces/{namespace}"
        names = sorted(self._names)
        paths = [f"{core}/{'configmaps' if kind == 'configmap' else 'secrets'}/{name}" for kind, name in names]
        found = dict(zip(names, await asyncio.gather(*map(self._client.find, paths)), strict=True))
        services = await self._client.call("GET", f"{core}/services")
        kubernetes = await self._client.find("/api/v1/namespaces/default/services/kubernetes")
        return Sources(
            configmaps={name: _data(item) for (kind, name), item in found.items() if kind == "configmap"},
            secrets={name: _data(item) for (kind, name), item in found.items() if kind == "secret"},
            tokens={key: await self._token(key) for key in self._keys},
            services=(*services["items"], *([kubernetes] if kubernetes else [])),
        )

    async def _token(self, key: TokenKey) -> str:
        renew_at, token = self._tokens.get(key, (0.0, ""))
        if time.monotonic() >= renew_at:
            token = await self._request_token(*key)
            self._tokens[key] = (time.monotonic() + 0.8 * key[1], token)
        return token

    async def _request_token(self, audience: str, seconds: int) -> str:
        metadata = self._pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        spec: Object = {"expirationSeconds": seconds, "boundObjectRef": bound}
        if audience:
            spec["audiences"] = [audience]
        account = self._pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        answer = await self._client.call("POST", path, {"spec": spec})
        return str(answer["status"]["token"])


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


def _data(item: Object | None) -> Mapping[str, bytes] | None:
    if item is None:
        return None
    if item.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    text = {key: value.encode() for key, value in (item.get("data") or {}).items()}
    return text | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}

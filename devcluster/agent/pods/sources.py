"""Reads from the API what a pod takes from other objects, all of it at one moment: what follows is pure."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping

import httpx

from devcluster.agent.decisions.sources import Sources, TokenKey, find_references, find_token_requests
from devcluster.agent.errors import ConfigError
from devcluster.kube.client import ApiClient, ApiError
from devcluster.kube.objects import Object


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


def _data(item: Object | None) -> Mapping[str, bytes] | None:
    if item is None:
        return None
    if item.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    text = {key: value.encode() for key, value in (item.get("data") or {}).items()}
    return text | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}

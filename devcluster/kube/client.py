"""A thin asynchronous client of the API server: JSON in, JSON out, and a watch that outlives its connection.

Reads a kubeconfig with client certificates. Knows paths and HTTP, nothing of pods.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import yaml

from devcluster.kube.objects import Object

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
RETRY_S = 1.0
WATCH_S = 300

log = logging.getLogger(__name__)


class ApiError(Exception):
    """The API server refused; `status` is the HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiClient:
    """One connection pool to one API server."""

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        self._http = httpx.AsyncClient(base_url=server, verify=context, timeout=30, trust_env=False)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> ApiClient:
        """Connect as the current context's user, who must have a client certificate."""
        config = yaml.safe_load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        tls = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority"))
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(_pem(user, "client-certificate") + "\n" + _pem(user, "client-key"))
            file.flush()
            tls.load_cert_chain(file.name)
        return cls(cluster["server"], tls)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, body: Object | None = None, *, content_type: str = JSON) -> Object:
        """Make one request.

        Raises:
            ApiError: the server answered with an error.
            httpx.TransportError: the server did not answer.
        """
        headers = {"Content-Type": content_type}
        content = None if body is None else json.dumps(body)
        response = await self._http.request(method, path, content=content, headers=headers)
        if response.is_error:
            raise ApiError(response.status_code, _message(response.text))
        return dict(response.json())

    async def find(self, path: str) -> Object | None:
        """Get one object, or None if there is none."""
        try:
            return await self.call("GET", path)
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield `(type, object)` for ever, beginning with `SYNC` and the list.

        `SYNC` comes again whenever changes may have been missed (410, a lost server); its object is the whole list.
        """
        while True:
            try:
                listing = await self.call("GET", path)
                yield "SYNC", listing
                version = listing["metadata"]["resourceVersion"]
                while version:
                    async for kind, item in self._follow(path, version):
                        version = "" if kind == "ERROR" else item["metadata"]["resourceVersion"]
                        if kind not in {"BOOKMARK", "ERROR"}:
                            yield kind, item
            except (httpx.TransportError, ApiError) as error:
                log.info("watch of %s starts again: %s", path, error)
                await asyncio.sleep(RETRY_S)

    async def _follow(self, path: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield the events of one watch connection, until the server ends it."""
        parameters: Mapping[str, str | int] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_S,
        }
        timeout = httpx.Timeout(30, read=WATCH_S + 30)
        async with self._http.stream("GET", path, params=parameters, timeout=timeout) as response:
            if response.is_error:
                raise ApiError(response.status_code, _message((await response.aread()).decode()))
            async for line in response.aiter_lines():
                event = json.loads(line)
                yield event["type"], event["object"]


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _pem(holder: Object, key: str) -> str:
    """Read a certificate or key that stands in the kubeconfig or in a file beside it."""
    if f"{key}-data" in holder:
        return base64.b64decode(holder[f"{key}-data"]).decode()
    return Path(holder[key]).read_text()


def _message(text: str) -> str:
    try:
        return str(json.loads(text).get("message", text))
    except (ValueError, AttributeError):
        return text

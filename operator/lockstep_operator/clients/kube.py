"""A small client of the API server: plain dictionaries in and out, HTTP statuses as our errors.

Credentials and TLS come from the official client's configuration; the requests are our own, because server-side apply
and custom resources need none of its generated models. It blocks: call it from a thread, never from the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from lockstep_operator import names
from lockstep_operator.errors import Conflict, KubeError, NotFound
from lockstep_operator.kinds import Kind, Object

TIMEOUT = urllib3.Timeout(connect=5, read=30)
WATCH_S = 240
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Kube:
    """Reads and writes objects.

    Args:
        on_write: told the verb and kind of every write that the server took.
        configuration: where the server is; by default the pod's ServiceAccount, else the kubeconfig.
    """

    def __init__(self, on_write: Callable[[str, str], None], configuration: client.Configuration | None = None) -> None:
        self._on_write = on_write
        self._configuration = configuration or load_configuration()
        self._pool = client.ApiClient(self._configuration).rest_client.pool_manager

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object.

        Raises:
            NotFound: there is none, or the API is not served.
        """
        return self.call("GET", kind.build_path(namespace, name))

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Read one object, or None when there is none."""
        try:
            return self.get(kind, namespace, name)
        except NotFound:
            return None

    def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        """List the objects that a label selector picks, in one namespace or in all.

        Raises:
            NotFound: the API is not served.
        """
        return self._list_page(kind, namespace, selector)["items"]

    def apply(self, kind: Kind, manifest: Object, *, force: bool) -> Object:
        """Server-side apply an object as our field manager.

        Raises:
            Conflict: without `force`, a field belongs to somebody else.
        """
        metadata = manifest["metadata"]
        path = kind.build_path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": names.FIELD_MANAGER, "force": str(force).lower()}
        return self._write("PATCH", "apply", kind, path, manifest, query, APPLY_PATCH)

    def patch(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """Merge-patch an object; with `metadata.resourceVersion` in it, only that version."""
        query = {"fieldManager": names.FIELD_MANAGER}
        return self._write("PATCH", "patch", kind, kind.build_path(namespace, name), patch, query, MERGE_PATCH)

    def replace_status(self, kind: Kind, manifest: Object) -> Object:
        """Replace an object's status; fails with Conflict when the object changed since it was read."""
        metadata = manifest["metadata"]
        path = kind.build_path(metadata["namespace"], metadata["name"], "status")
        query = {"fieldManager": names.FIELD_MANAGER}
        return self._write("PUT", "update_status", kind, path, manifest, query)

    def create(self, kind: Kind, manifest: Object) -> Object:
        """Create an object."""
        path = kind.build_path(manifest["metadata"]["namespace"])
        return self._write("POST", "create", kind, path, manifest, {"fieldManager": names.FIELD_MANAGER})

    def delete(self, kind: Kind, namespace: str, name: str, uid: str, propagation: str = "Background") -> None:
        """Delete an object; with `Foreground` it vanishes only after all that it owns. One that is gone is no fault."""
        body = {"propagationPolicy": propagation, "preconditions": {"uid": uid}}
        try:
            self._write("DELETE", "delete", kind, kind.build_path(namespace, name), body, {})
        except NotFound:
            return

    def watch(self, kind: Kind, namespace: str | None, selector: str) -> Iterator[Object]:
        """Yield every object that a selector picks: first all, then each that changes, until the watch ends."""
        page = self._list_page(kind, namespace, selector)
        yield from page["items"]
        query = {
            "labelSelector": selector,
            "watch": "true",
            "resourceVersion": page["metadata"]["resourceVersion"],
            "timeoutSeconds": str(WATCH_S),
        }
        for line in self._stream(kind.build_path(namespace), query):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise KubeError(event["object"].get("code", 0), event["object"].get("message", "the watch failed"))
            yield event["object"]

    def _stream(self, path: str, query: dict[str, str]) -> Iterator[bytes]:
        timeout = urllib3.Timeout(connect=5, read=WATCH_S + 30)
        response = self._request("GET", path, query=query, timeout=timeout, stream=True)
        buffer = b""
        try:
            for chunk in response.stream(amt=65536, decode_content=True):
                *lines, buffer = (buffer + chunk).split(b"\n")
                yield from (line for line in lines if line)
        except urllib3.exceptions.HTTPError as error:
            raise KubeError(0, str(error)) from error
        finally:
            response.close()

    def _list_page(self, kind: Kind, namespace: str | None, selector: str) -> Object:
        query = {"labelSelector": selector} if selector else {}
        return self.call("GET", kind.build_path(namespace), query)

    def _write(
        self,
        method: str,
        verb: str,
        kind: Kind,
        path: str,
        body: Object,
        query: dict[str, str],
        content_type: str = "application/json",
    ) -> Object:
        answer = self.call(method, path, query, body, content_type)
        self._on_write(verb, kind.name)
        return answer

    def call(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Send one request; for what has no method of its own. It does not count as a write."""
        response = self._request(method, path, query=query, body=body, content_type=content_type, timeout=TIMEOUT)
        answer: Object = json.loads(response.data)
        return answer

    def _request(
        self,
        method: str,
        path: str,
        *,
        timeout: urllib3.Timeout,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": names.FIELD_MANAGER}
        token = self._configuration.auth_settings().get("BearerToken")
        if token is not None:
            headers["Authorization"] = token["value"]
        data = None if body is None else json.dumps(body).encode()
        try:
            response: urllib3.BaseHTTPResponse = self._pool.request(
                method, url, body=data, headers=headers, timeout=timeout, preload_content=not stream, retries=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise KubeError(0, f"{method} {path}: {error}") from error
        if response.status >= 400:
            raise _build_error(response.status, method, path, response.data)
        return response


def load_configuration() -> client.Configuration:
    """Find the API server: the pod's ServiceAccount if there is one, else the kubeconfig."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        config.load_kube_config(client_configuration=configuration)
    return configuration


def _build_error(status: int, method: str, path: str, body: bytes) -> KubeError:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    error = {404: NotFound, 409: Conflict}.get(status, KubeError)
    return error(status, f"{method} {path}: {message}")

"""What is checked before a body is read: the API key, and the length that the client announces."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lockstep_worker.contract import DRAIN_PATH
from lockstep_worker.frontend.http.respond import send_error
from lockstep_worker.frontend.schema.faults import ApiError

_GUARDED_PATHS = frozenset({"/tokenize", "/detokenize"})


class Guard:
    """Lets requests through that carry the key or need none, and that are not too large.

    Args:
        app: what it guards.
        api_key: the key that `Authorization: Bearer` must carry, or None.
        max_body_bytes: of one request. Bodies of unknown length are cut off while they are read, by the app.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, max_body_bytes: int) -> None:
        self._app = app
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 413."""
        fault = self._find_fault(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        if fault is not None:
            await send_error(send, fault)
        else:
            await self._app(scope, receive, send)

    def _find_fault(self, scope: Scope, headers: Headers) -> ApiError | None:
        if self._expected is not None and needs_key(scope["method"], scope["path"]):
            given = headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, self._expected):
                return ApiError(401, "The API key is missing or wrong.", code="invalid_api_key")
        if int(headers.get("content-length", "0")) > self._max_body_bytes:
            return ApiError.too_large(self._max_body_bytes)
        return None


def needs_key(method: str, path: str) -> bool:
    """Say whether a request costs something, or shows what is served, so that only those with the key may send it."""
    if path == DRAIN_PATH:
        return method != "GET"
    return path.startswith("/v1/") or path in _GUARDED_PATHS

"""The API key, checked before a body is read."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lockstep_worker.contract import DRAIN_PATH
from lockstep_worker.frontend.faults import ApiError
from lockstep_worker.frontend.respond import send_error

_GUARDED_PATHS = frozenset({"/tokenize", "/detokenize"})


class ApiKeyGuard:
    """Lets requests through that carry the key or need none.

    Args:
        app: what it guards.
        key: the key that `Authorization: Bearer` must carry.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and _needs_key(scope) and not self._has_key(scope):
            await send_error(send, ApiError(401, "The API key is missing or wrong.", code="invalid_api_key"))
            return
        await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get("authorization", "")
        return hmac.compare_digest(given.encode(), self._expected)


def _needs_key(scope: Scope) -> bool:
    path = scope["path"]
    if path == DRAIN_PATH:
        return bool(scope["method"] != "GET")
    return path.startswith("/v1/") or path in _GUARDED_PATHS

"""Counts every answer, also those of requests that were never accepted: 401, 404, 413, 429, 503."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep_worker.metrics.families import Labels
from lockstep_worker.metrics.instruments import Counter

OTHER = "other"
"""The path of what is no route, so that no client can make series."""


class Meter:
    """Counts answers by route and status, where they leave.

    Args:
        app: whose answers.
        paths: of the routes, as the OpenAPI document writes them.
        responses: the counters.
    """

    def __init__(self, app: ASGIApp, paths: frozenset[str], responses: Mapping[Labels, Counter]) -> None:
        self._app, self._paths, self._responses = app, paths, responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and the answer back."""

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._responses[self._find_path(scope), str(message["status"])].inc()
            await send(message)

        await self._app(scope, receive, count if scope["type"] == "http" else send)

    def _find_path(self, scope: Scope) -> str:
        """Name the route: the one that was found, or, where the request did not come so far, the one asked for."""
        path = str(getattr(scope.get("route"), "path_format", scope["path"]))
        return path if path in self._paths else OTHER

"""What both ways to answer share: the client is watched while the ranks work, and the request is closed once."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lockstep_worker.frontend.flight.engine import Engine
from lockstep_worker.frontend.flight.generation import Generation
from lockstep_worker.frontend.schema.faults import ApiError


class Responder(Response):
    """An ASGI response that is written while, or after, a generation runs.

    Args:
        engine: has opened the generation.
        generation: what is answered.
    """

    def __init__(self, engine: Engine, generation: Generation) -> None:
        super().__init__()
        self._engine = engine
        self._generation = generation

    @abstractmethod
    async def _write(self, send: Send) -> None:
        """Write the whole response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the response, and cancel the work as soon as the client is gone."""
        watch = asyncio.create_task(self._watch(receive))
        try:
            await self._write(send)
        finally:
            watch.cancel()
            self._engine.close(self._generation)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._engine.end(self._generation, "disconnect", None)


async def send_error(send: Send, error: ApiError) -> None:
    """Write a whole response that says what went wrong."""
    await send_json(send, error.status, error.body(), error.headers)


async def send_json(send: Send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    """Write a whole JSON response."""
    fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})

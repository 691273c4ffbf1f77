"""A lean client for streamed completions: one kept connection a worker, whose bytes go straight to an `Answer`.

It works on asyncio's protocols, without a task that wakes for each event: with 256 streams an event costs it 12 us of a
slow core, where streams cost 20. It knows nothing of what the times mean.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from lockstep_worker.bench.serving.answer import Answer
from lockstep_worker.bench.serving.timing import Timeline


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and what every request has in common."""

    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...]
    body: dict[str, Any]

    def encode(self, prompt: list[int], max_tokens: int, seed: int | None = None) -> bytes:
        """Return the whole request; without a seed the server draws as it likes."""
        own = {"prompt": prompt, "max_tokens": max_tokens} | ({} if seed is None else {"seed": seed})
        content = json.dumps(self.body | own).encode()
        fields = [("Host", f"{self.host}:{self.port}"), ("Content-Type", "application/json"), *self.headers]
        head = "".join(f"{name}: {value}\r\n" for name, value in [*fields, ("Content-Length", str(len(content)))])
        return f"POST {self.path} HTTP/1.1\r\n{head}\r\n".encode() + content


class Connection:
    """One kept connection; a request at a time.

    Args:
        target: where it goes.
        timeout_s: what one request may take.
    """

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._wire: _Wire | None = None

    async def stream(self, request: bytes, cut_s: float = math.inf) -> Timeline:
        """Send a request and read its answer to the end; what goes wrong becomes the timeline's error.

        Args:
            request: the whole of it.
            cut_s: on the clock of `time.perf_counter`; from then on nothing more is read, and the connection is closed.
        """
        start = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                timeline = await self._exchange(request, Answer(start, cut_s))
        except TimeoutError:
            timeline = Timeline(start, time.perf_counter(), error=f"no end within {self._timeout_s:g} s")
        except (OSError, asyncio.IncompleteReadError, ValueError, LookupError) as fault:
            timeline = Timeline(start, time.perf_counter(), error=f"{type(fault).__name__}: {fault}")
        if timeline.error is not None or timeline.is_cut:
            await self.close()
        return timeline

    async def close(self) -> None:
        """Close the connection; the next request opens another."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    async def _exchange(self, request: bytes, answer: Answer) -> Timeline:
        if self._wire is None:
            loop = asyncio.get_running_loop()
            _, self._wire = await loop.create_connection(_Wire, self._target.host, self._target.port)
        return await self._wire.ask(request, answer)


class _Wire(asyncio.Protocol):
    """A connection's two ends: a request goes out, and bytes go to the answer that is awaited."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._answer: Answer | None = None
        self._timeline: asyncio.Future[Timeline] = loop.create_future()
        self._lost: asyncio.Future[None] = loop.create_future()

    def ask(self, request: bytes, answer: Answer) -> asyncio.Future[Timeline]:
        """Send a request; the future is done with its answer, or with what went wrong."""
        self._answer, self._timeline = answer, asyncio.get_running_loop().create_future()
        if self._lost.done():
            self._timeline.set_exception(asyncio.IncompleteReadError(b"", None))
        else:
            self._transport.write(request)
        return self._timeline

    async def close(self) -> None:
        """Close it and wait until it is closed."""
        self._transport.close()
        with suppress(OSError):
            await self._lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        now = time.perf_counter()
        if self._answer is None or self._timeline.done():
            return
        try:
            timeline = self._answer.feed(data, now)
        except (ValueError, LookupError) as fault:
            self._timeline.set_exception(fault)
            return
        if timeline is not None:
            self._timeline.set_result(timeline)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._lost.set_result(None)
        if self._answer is not None and not self._timeline.done():
            self._timeline.set_exception(error or asyncio.IncompleteReadError(b"", None))

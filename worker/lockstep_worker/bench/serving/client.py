"""A lean client for streamed completions: asyncio streams, one connection a worker, and no JSON but the last chunk.

A client that parses every event would measure itself. It stamps each event as it arrives, counts tokens by the usage
that the server sends, and knows nothing of what the times mean.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lockstep_worker.bench.serving.timing import Timeline

_READ_BYTES = 1 << 18
_DONE = b"data: [DONE]"
_FAULT = b'data: {"error"'
_WITHOUT_CHOICES = (b'"choices":[]', b'"choices": []')
_BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, LookupError)
"""How a connection or an answer goes wrong."""


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
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def stream(self, request: bytes, cut_s: float = math.inf) -> Timeline:
        """Send a request and read its answer to the end; what goes wrong becomes the timeline's error.

        Args:
            request: the whole of it.
            cut_s: on the clock of `time.perf_counter`; from then on nothing more is read, and the connection is closed.
        """
        start = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                timeline = await self._exchange(request, start, cut_s)
            if timeline.is_cut:
                await self.close()
            return timeline
        except TimeoutError:
            error = f"no end within {self._timeout_s:g} s"
        except _BROKEN as fault:
            error = f"{type(fault).__name__}: {fault}"
        await self.close()
        return Timeline(start, time.perf_counter(), error=error)

    async def close(self) -> None:
        """Close the connection; the next request opens another."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with suppress(OSError):
                await streams[1].wait_closed()

    async def _exchange(self, request: bytes, start: float, cut_s: float) -> Timeline:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._target.host, self._target.port, limit=1 << 22)
        reader, writer = self._streams
        writer.write(request)
        status, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        body = _read_body(reader, headers)
        if status != 200:
            text = b"".join([part async for part in body]).decode(errors="replace")
            return Timeline(start, time.perf_counter(), error=f"HTTP {status}: {text[:300]}")
        return await _read_events(body, start, cut_s)


async def _read_events(body: AsyncIterator[bytes], start: float, cut_s: float) -> Timeline:
    stamps: list[float] = []
    usage: dict[str, Any] | None = None
    rest, is_done = b"", False
    async for part in body:
        now = time.perf_counter()
        *events, rest = (rest + part).split(b"\n\n")
        for event in events:
            if event.startswith(_DONE):
                is_done = True
            elif event.startswith(_FAULT):
                return Timeline(start, now, error=event[6:300].decode(errors="replace"))
            elif any(mark in event for mark in _WITHOUT_CHOICES):
                usage = json.loads(event[6:])["usage"]
            else:
                stamps.append(now)
        if now >= cut_s and not is_done:
            return Timeline(start, now, tuple(stamps), is_cut=True)
    if not is_done or usage is None or not stamps:
        what = "the stream ended early" if not is_done else "the stream has no text or no usage"
        return Timeline(start, time.perf_counter(), error=what)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Timeline(start, now, tuple(stamps), usage["prompt_tokens"], usage["completion_tokens"], cached_tokens=cached)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split(" ", 2)[1]), {name.lower(): value.strip().lower() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, without its framing."""
    if headers.get("transfer-encoding") != "chunked":
        length = int(headers["content-length"])
        yield await reader.readexactly(length)
        return
    chunks = _Chunks()
    while not chunks.is_ended:
        data = await reader.read(_READ_BYTES)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        yield b"".join(chunks.feed(data))


class _Chunks:
    """Takes HTTP's chunked framing off, however the bytes are cut."""

    def __init__(self) -> None:
        self._rest = b""
        self.is_ended = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the contents of all chunks that are complete."""
        data = self._rest + data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:end].split(b";")[0], 16)
            after = end + 2 + size + 2
            if after > len(data):
                break
            at = after
            if not size:
                self.is_ended = True
                break
            yield data[end + 2 : after - 2]
        self._rest = data[at:]

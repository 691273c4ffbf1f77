"""The clients of `bench stream`.

They count bytes and look into the last chunk only: a client that parses every event would measure itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import NamedTuple

from lockstep_worker.bench import BenchFailed

_PROMPT = "COPY"
_READ_BYTES = 1 << 18
_TAIL_BYTES = 600
"""Of a stream, enough for the chunk with its usage."""
_COUNT = b'"completion_tokens":'


class Stream(NamedTuple):
    """One stream as its client saw it; seconds on one clock."""

    first_s: float
    """When the answer's head was there."""
    last_s: float
    num_bytes: int
    """Of the body, with its framing."""
    num_tokens: int
    """As the server's usage counts them."""


async def read_all(port: int, model: str, streams: int, tokens: int) -> list[Stream]:
    """Read so many streams of so many tokens at once.

    Raises:
        BenchFailed: a stream was refused, or ended early.
    """
    return list(await asyncio.gather(*(_read(port, model, tokens) for _ in range(streams))))


async def _read(port: int, model: str, tokens: int) -> Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(_encode(model, tokens))
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise BenchFailed(f"the frontend answered {(head + await reader.read())[:300].decode(errors='replace')}")
        first_s, num_bytes, tail = time.monotonic(), 0, b""
        while chunk := await reader.read(_READ_BYTES):
            num_bytes += len(chunk)
            tail = (tail + chunk)[-_TAIL_BYTES:]
        return Stream(first_s, time.monotonic(), num_bytes, _count_tokens(tail))
    except (OSError, EOFError) as error:
        raise BenchFailed(f"a stream broke: {error}") from None
    finally:
        writer.close()


def _encode(model: str, tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": _PROMPT,
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def _count_tokens(tail: bytes) -> int:
    _, found, rest = tail.rpartition(_COUNT)
    if not found:
        raise BenchFailed(f"a stream ended without its usage: {tail.decode(errors='replace')}")
    return int(rest.split(b",")[0])

"""A server that answers at once: what the client reaches against it is the client's own ceiling.

It sends one chunk an event and lets the other streams have their turn after each, as an engine's steps do. It runs in a
process of its own and knows nothing of models.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_ENVELOPE = {"id": f"cmpl-{'0' * 32}", "object": "text_completion", "created": 1_700_000_000, "model": "stub"}


@contextmanager
def run_stub() -> Iterator[int]:
    """Run the stub on 127.0.0.1 and give its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def _main(port: Connection) -> None:
    asyncio.run(_serve(port))


async def _serve(port: Connection) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=2048)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection, as long as it is there."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            await _stream(writer, body["max_tokens"], len(body["prompt"]))
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


async def _stream(writer: asyncio.StreamWriter, num_tokens: int, prompt_tokens: int) -> None:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": num_tokens}
    choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None}
    event = _frame({**_ENVELOPE, "choices": [choice], "usage": None})
    writer.write(_HEAD)
    for _ in range(num_tokens):
        writer.write(event)
        await asyncio.sleep(0)
    writer.write(_frame({**_ENVELOPE, "choices": [], "usage": usage}) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    await writer.drain()


def _frame(event: dict[str, object]) -> bytes:
    return _chunk(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"

"""The engine of `bench stream`: a process that takes requests as rank 0 does and publishes text without a model."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import zmq

from lockstep_worker.wire.messages import FinishCode, Inbound, NewRequest, Progress, Tokens


class Script(NamedTuple):
    """What the engine does."""

    inbound: str
    outbound: str
    text_ids: list[int]
    """What it draws from."""
    streams: int
    tokens: int
    """Of each stream."""
    step_s: float
    """A step brings each stream one token; 0 is as fast as the socket takes them."""


@contextlib.contextmanager
def run_engine(script: Script) -> Iterator[None]:
    """Run the engine in a process of its own."""
    engine = multiprocessing.Process(target=_publish, args=(script,), daemon=True)
    engine.start()
    try:
        yield
    finally:
        engine.terminate()
        engine.join()


def _publish(script: Script) -> None:
    """Wait until all streams are there, then publish a token for each of them in every step."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    requests, publisher = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    requests.connect(script.inbound)
    publisher.connect(script.outbound)
    publisher.send(msgspec.msgpack.encode(Progress(0, 0, 0, 0, 1)))
    handles = _await_requests(requests, script.streams)
    rng, text_ids = np.random.default_rng(0), np.array(script.text_ids)
    next_s = time.monotonic()
    for step in range(script.tokens):
        codes = [FinishCode.LENGTH if step == script.tokens - 1 else 0] * script.streams
        drawn = text_ids[rng.integers(0, text_ids.size, script.streams)]
        publisher.send(msgspec.msgpack.encode(Tokens.pack(0, step, handles, drawn, codes)))
        next_s += script.step_s
        time.sleep(max(0.0, next_s - time.monotonic()))
    context.destroy(linger=-1)


def _await_requests(requests: zmq.Socket[bytes], count: int) -> list[int]:
    handles: list[int] = []
    while len(handles) < count:
        message: Inbound = msgspec.msgpack.decode(requests.recv(), type=Inbound)
        if isinstance(message, NewRequest):
            handles.append(message.handle)
    return handles

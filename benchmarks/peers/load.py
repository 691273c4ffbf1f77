"""The clients: a few processes that share a workload's lanes, so that no one of them is near its limit.

Each has its own loop over lean connections (`bench serve`'s). They draw and encode all requests before the common
start, and stamp every event by a clock that all processes of a host share. How much of a core the busiest one used
comes back with the stamps: near 1 the figures would be the clients' and not the server's.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe

from benchmarks.peers.workloads import Lane
from lockstep_worker.bench.serving.client import Connection, Target
from lockstep_worker.bench.serving.timing import Timeline

_LEAD_S = 0.05
"""From the word to the start: every process must have read it."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one process does."""

    target: Target
    vocab_size: int
    lanes: tuple[Lane, ...]
    timeout_s: float
    """Of one request."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the clients saw."""

    start_s: float
    """The common start, on the stamps' clock."""
    lanes: list[list[Timeline]]
    """The requests of each lane, in the workload's order."""
    busiest: float
    """Part of a core that the busiest process used."""


class Clients:
    """The processes; see `run_clients`."""

    def __init__(self, pipes: Sequence[Pipe]) -> None:
        self._pipes = pipes

    def send(self, target: Target, vocab_size: int, lanes: Sequence[Lane], timeout_s: float) -> Seen:
        """Send a workload and wait for all its answers."""
        pipes = self._pipes[: len(lanes)]
        count = len(pipes)
        for number, pipe in enumerate(pipes):
            pipe.send(Share(target, vocab_size, tuple(lanes[number::count]), timeout_s))
        for pipe in pipes:
            assert pipe.recv() == "ready"
        start_s = time.perf_counter() + _LEAD_S
        for pipe in pipes:
            pipe.send(start_s)
        answers: list[tuple[list[list[Timeline]], float]] = [pipe.recv() for pipe in pipes]
        seen = [answers[number % count][0][number // count] for number in range(len(lanes))]
        return Seen(start_s, seen, round(max(busy for _, busy in answers), 3))


@contextmanager
def run_clients(processes: int) -> Iterator[Clients]:
    """Start the processes, and end them afterwards."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(processes)]
    running = [context.Process(target=_main, args=(theirs,), daemon=True) for _, theirs in pairs]
    for process in running:
        process.start()
    try:
        yield Clients([ours for ours, _ in pairs])
    finally:
        for process in running:
            process.kill()
            process.join()


def _main(pipe: Pipe) -> None:
    while True:
        share: Share = pipe.recv()
        requests = [
            [share.target.encode(order.draw(share.vocab_size), order.output) for order in lane.orders]
            for lane in share.lanes
        ]
        gc.collect()
        gc.disable()  # a collection among the stamps would look like a gap
        pipe.send("ready")
        start_s = pipe.recv()
        before = time.process_time(), time.perf_counter()
        lanes = asyncio.run(_run(share, requests, start_s))
        busy = (time.process_time() - before[0]) / (time.perf_counter() - before[1])
        gc.enable()
        pipe.send((lanes, busy))


async def _run(share: Share, requests: list[list[bytes]], start_s: float) -> list[list[Timeline]]:
    works = zip(share.lanes, requests, strict=True)
    return list(await asyncio.gather(*(_follow(share, lane, each, start_s) for lane, each in works)))


async def _follow(share: Share, lane: Lane, requests: list[bytes], start_s: float) -> list[Timeline]:
    """Ask for one thing after another; a lane ends with its first failure, or when it is cut."""
    await asyncio.sleep(start_s + lane.start_s - time.perf_counter())
    connection, timelines, cut_s = Connection(share.target, share.timeout_s), list[Timeline](), start_s + lane.cut_s
    for request in requests:
        timelines.append(await connection.stream(request, cut_s))
        if timelines[-1].error is not None or time.perf_counter() >= cut_s:
            break
    await connection.close()
    return timelines

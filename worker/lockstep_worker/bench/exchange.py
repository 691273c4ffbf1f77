"""`bench exchange`: collectives, bytes and time of a step's exchange between ranks, beside a naive protocol.

The naive one does each step what engines did that we learned from: broadcast the new requests as a pickle, gather what
each rank found in its prefix cache, and gather the responses, whether there is anything to say or not. mpi4py sends
the length of every pickle first, so that each of its operations is two collectives.

Times are the host's. Back to back, spinning protocols look best; around a forward one sees what a step really pays.

`run_exchange` starts the ranks; each of them is `python -m lockstep_worker.bench.exchange STEPS`.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
import typing
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from lockstep_worker.bench.counting import CountingComm
from lockstep_worker.bench.machine import describe_machine, summarize
from lockstep_worker.bench.ranks import run_ranks
from lockstep_worker.executor.exchange import Exchange, RankState
from lockstep_worker.executor.idle import wait_awake
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.comm import Comm, MpiComm
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.supervisor.command import Mpirun
from lockstep_worker.wire.messages import Inbound, NewRequest
from lockstep_worker.wire.params import SamplingParams

NUM_REQUESTS = 64
PROMPT_LENGTH = 128
FORWARD_S = 0.001
"""Stands for a step's forward; a sleep, so that it takes no core."""
_WARM_UP = 20
_STATE = RankState(step=0, active=1, running=1, tokens=128, free_blocks=1000, digest=0, routes=0)
_RANK_MODULE = "lockstep_worker.bench.exchange"


def run_exchange(ranks: int, steps: int, mpirun: Mpirun, environ: Mapping[str, str]) -> dict[str, Any]:
    """Start the ranks on this host and return what they measured.

    Args:
        ranks: how many.
        steps: timed steps of each kind.
        mpirun: the launcher.
        environ: our environment, for the ranks.

    Raises:
        BenchFailed: with what the ranks said.
    """
    measured = run_ranks(_RANK_MODULE, ranks, [str(steps)], mpirun, environ)
    return {"benchmark": "exchange", "ranks": ranks, **measured, "machine": describe_machine()}


def measure_exchange(comm: MpiComm, steps: int) -> dict[str, Any]:
    """Measure both protocols on this rank; every rank of the group must do so together."""
    result: dict[str, Any] = {}
    for kind, items in (("empty", []), (f"{NUM_REQUESTS}_requests", build_requests())):
        mine = items if comm.rank == 0 else []
        protocols: dict[str, Protocol] = {"lockstep": Ours(comm), "naive": Naive(comm)}
        result[kind] = {name: _measure(protocol, mine, steps) for name, protocol in protocols.items()}
    return result


def build_requests() -> list[Inbound]:
    """A burst of requests as chat clients send them."""
    params = SamplingParams(max_tokens=256, temperature=0.7, seed=1 << 40, end_ids=(2,))
    return [NewRequest(handle, [*range(PROMPT_LENGTH)], params) for handle in range(1, NUM_REQUESTS + 1)]


def _measure(protocol: Protocol, items: list[Inbound], steps: int) -> dict[str, Any]:
    alone = _time(protocol, items, steps, forward_s=0.0)
    counted = protocol.operations[:]
    return {
        "collectives_per_step": len(counted) / steps,
        "bytes_per_step": sum(size for _, size in counted) / steps,
        "us_back_to_back": summarize(alone),
        "us_around_a_forward": summarize(_time(protocol, items, steps, forward_s=FORWARD_S)),
    }


def _time(protocol: Protocol, items: list[Inbound], steps: int, *, forward_s: float) -> list[float]:
    """Time what the host spends on each step's exchange, the forward in its middle taken out."""
    seconds = []
    for index in range(_WARM_UP + steps):
        if index == _WARM_UP:
            protocol.operations.clear()
        start = time.perf_counter()
        protocol.open(items)
        opened = time.perf_counter()
        time.sleep(forward_s)
        forwarded = time.perf_counter()
        protocol.close()
        seconds.append(opened - start + time.perf_counter() - forwarded)
    return seconds[_WARM_UP:]


class Protocol(typing.Protocol):
    """One step's talk between ranks, in two halves around the forward."""

    operations: list[tuple[str, int]]
    """What it did: collectives and their bytes."""

    def open(self, items: list[Inbound]) -> None:
        """Before the forward."""

    def close(self) -> None:
        """After it; every rank knows then what rank 0 brought."""


class Ours:
    """The loop's exchange."""

    def __init__(self, comm: Comm) -> None:
        counting, topology = CountingComm(comm), Topology.of(comm.rank, tensor=comm.size)
        self.operations = counting.operations
        self._exchange = Exchange(counting, RankMetrics(CollectorRegistry(), comm.rank), topology)

    def open(self, items: list[Inbound]) -> None:
        """See `Protocol`."""
        self._exchange.post(_STATE, items)

    def close(self) -> None:
        """See `Protocol`."""
        self._exchange.complete(wait_awake)


class Naive:
    """Three blocking operations on pickles; see this module's head."""

    def __init__(self, comm: MpiComm) -> None:
        self.operations: list[tuple[str, int]] = []
        self._rank, self._world = comm.rank, comm.world
        self._items: list[Inbound] = []

    def open(self, items: list[Inbound]) -> None:
        """Nothing of it can run under a forward."""
        self._items = items

    def close(self) -> None:
        """See `Protocol`."""
        received = self._world.bcast(self._items, root=0)
        matches = [0] * len(received)
        self._world.allgather(matches)
        self._world.gather([], root=0)
        for name, value in (("bcast", received), ("allgather", matches), ("gather", [])):
            self.operations += [(f"{name} length", 8), (name, len(pickle.dumps(value)))]


def _main() -> None:
    comm = MpiComm()
    result = measure_exchange(comm, int(sys.argv[1]))
    if comm.rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    _main()

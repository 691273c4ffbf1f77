"""`bench idle`: what an idle group costs, and how soon after a request arrives every rank runs it.

The ranks run the product's loop, exchange, scheduler and intake; only the model is left out, so that a run is a
time stamp. A client thread of rank 0 hands in one request at a time, each at a random moment of an idle park, through
the socket that the frontend uses.

`run_idle` starts the ranks; each of them is `python -m lockstep_worker.bench.idle REQUESTS SECONDS`.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch
import zmq
from prometheus_client import CollectorRegistry

from lockstep_worker import contract
from lockstep_worker.bench.machine import describe_machine, summarize
from lockstep_worker.bench.ranks import run_ranks
from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.executor.intake import Intake, Limits
from lockstep_worker.executor.loop import Loop, Parts
from lockstep_worker.executor.routing import Router
from lockstep_worker.health.hang import HangDetector
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.comm import MpiComm
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.runner.runner import Run, Runner
from lockstep_worker.sampling.sampler import Drawn
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.supervisor.command import Mpirun
from lockstep_worker.wire.messages import FinishCode, Inbound, NewRequest, Shutdown
from lockstep_worker.wire.params import SamplingParams

HANG_TIMEOUT_S = 4.0
"""A third of the default idle time: a park that is taken for a hang ends the benchmark."""
_PARK_S = (0.02, 0.12)
"""How long a client waits between two requests: long against a step, at random against the ranks' naps."""
_LIMITS = Limits(vocab_size=100, max_model_len=64, num_blocks=64, block_size=16)
_RANK_MODULE = "lockstep_worker.bench.idle"
_FIRST = 1


def run_idle(ranks: int, requests: int, seconds: float, mpirun: Mpirun, environ: Mapping[str, str]) -> dict[str, Any]:
    """Start the ranks on this host and return what they measured.

    Args:
        ranks: how many.
        requests: how many wake-ups to time.
        seconds: how long to idle for the share of a core.
        mpirun: what starts them.
        environ: our environment, for the ranks.

    Raises:
        BenchFailed: with what the ranks said.
    """
    measured = run_ranks(_RANK_MODULE, ranks, [str(requests), str(seconds)], mpirun, environ)
    return {"benchmark": "idle", "ranks": ranks, **measured, "machine": describe_machine()}


class _Stamps(Runner):
    """Notes when each request was run, in place of running it; every request ends with its first token."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self.run_ns: list[int] = []
        self._start = time.process_time(), time.monotonic()
        self.idle_share = 0.0
        """Of a core, from here to the first run, all threads of this rank together."""

    def takes_part(self, plan: Plan) -> bool:
        """See `Runner`."""
        return not plan.is_empty

    def run(self, plan: Plan) -> Run:
        """See `Runner`."""
        self.run_ns.append(time.monotonic_ns())  # one clock for all processes of a host
        if len(self.run_ns) == 1:
            cpu_s, wall_s = self._start
            self.idle_share = (time.process_time() - cpu_s) / (time.monotonic() - wall_s)
        tokens = torch.zeros((plan.rows.size, 1), dtype=torch.int64)
        codes = torch.full((plan.rows.size,), int(FinishCode.LENGTH), dtype=torch.uint8)
        return Run(
            rows=plan.rows,
            incarnations=self._table.incarnation[plan.rows],
            draws=plan.draws,
            drawn=Drawn(tokens, None, codes),
            logprobs=None,
            mark=None,
            eager_reason="no_graphs",
        )


class _Client(threading.Thread):
    """Idles, then wakes the group once for each request, then shuts it down."""

    def __init__(self, socket: zmq.Socket[bytes], requests: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._socket, self._requests, self._seconds = socket, requests, seconds
        self.sent_ns: list[int] = []

    def run(self) -> None:
        """See `threading.Thread`."""
        rng, params = random.Random(1), SamplingParams(max_tokens=1)
        time.sleep(self._seconds)
        for handle in range(_FIRST, _FIRST + self._requests):
            time.sleep(rng.uniform(*_PARK_S))
            self.sent_ns.append(time.monotonic_ns())
            self._send(NewRequest(handle, [1, 2, 3], params))
        self._send(Shutdown())

    def _send(self, item: Inbound) -> None:
        self._socket.send(msgspec.msgpack.encode(item))


def measure_idle(comm: MpiComm, requests: int, seconds: float) -> dict[str, Any]:
    """Idle, then wake up; every rank of the group must do so together. Empty on every rank but the first."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    intake = client = None
    if comm.rank == 0:
        socket = context.socket(zmq.PUSH)
        socket.bind("inproc://requests")
        intake = Intake(context, "inproc://requests", _LIMITS, refuse=lambda refused: None)
        client = _Client(socket, requests, seconds)
    comm.gather_once([0])  # all are here
    run_ns, idle_share = _follow(comm, intake, client)
    shares = [row[0] / 1e4 for row in comm.gather_once([int(idle_share * 1e6)])]
    run = np.array(comm.gather_once(run_ns))
    if client is None:
        return {}
    delays = (run - np.array(client.sent_ns)) * 1e-9
    return {
        "requests": requests,
        "idle_s": seconds,
        "idle_percent_of_a_core": {"each_rank": shares, "worst": max(shares)},
        "us_to_launch": {"rank_0": summarize(delays[0].tolist()), "last_rank": summarize(delays.max(0).tolist())},
    }


def _follow(comm: MpiComm, intake: Intake | None, client: _Client | None) -> tuple[list[int], float]:
    """Run the product's loop until the client's shutdown; when each request was run, and the idle share."""
    table = SlotTable(8, _LIMITS.max_model_len, 4)
    pool = BlockPool(_LIMITS.num_blocks, _LIMITS.block_size)
    metrics, topology = RankMetrics(CollectorRegistry(), comm.rank), Topology.of(comm.rank, tensor=comm.size)
    detector = HangDetector(HANG_TIMEOUT_S, on_hang=lambda hang: comm.abort(contract.EXIT_HANG))
    runner = _Stamps(table)
    parts = Parts(
        comm=comm,
        topology=topology,
        router=Router(comm, topology, pool, metrics, cache_aware=False),
        scheduler=Scheduler(table, pool, _LIMITS.max_model_len),
        runner=runner,
        detector=detector,
        metrics=metrics,
        source=intake,
        publisher=None,
    )
    detector.start()
    if client is not None:
        client.start()
    Loop(parts, max_model_len=_LIMITS.max_model_len, overlap=True).run()
    detector.stop()
    return runner.run_ns, runner.idle_share


def _main() -> None:
    comm = MpiComm()
    result = measure_idle(comm, int(sys.argv[1]), float(sys.argv[2]))
    if comm.rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    _main()

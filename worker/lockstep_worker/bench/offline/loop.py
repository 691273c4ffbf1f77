"""`bench loop`: what a decode step costs the host where the device costs nothing.

Everything is the product's own but the runner, whose runs are done when they start: what is left is scheduling, the
exchange of one rank, the update, and the message with the step's tokens, encoded as it would travel.
"""

from __future__ import annotations

import cProfile
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from prometheus_client import CollectorRegistry

from lockstep_worker.bench.machine import describe_machine, summarize
from lockstep_worker.bench.offline.ends import CountingOutlet, Scripted
from lockstep_worker.bench.offline.session import Workload
from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.executor.loop import Loop, Parts
from lockstep_worker.executor.routing import Router
from lockstep_worker.health.hang import HangDetector
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.comm import SingleComm
from lockstep_worker.parallel.topology import ALONE
from lockstep_worker.runner.runner import Run, Runner
from lockstep_worker.sampling.sampler import Drawn
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.messages import FinishCode

BLOCK_SIZE = 16
_PROMPT = 32
_WARM_UP = 50
"""Steps of each round that are left out at both its ends."""


class _CannedRunner(Runner):
    """Brings a token of every row at once, and ends a row at its limit; no model, no device."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._tokens = torch.full((table.num_slots, 1), 7, dtype=torch.int64)

    def takes_part(self, plan: Plan) -> bool:
        """See `Runner`."""
        return not plan.is_empty

    def run(self, plan: Plan) -> Run:
        """See `Runner`."""
        rows = plan.rows
        at_limit = plan.starts + plan.counts + 1 >= self._table.limit[rows]
        codes = torch.from_numpy(at_limit.astype(np.uint8) * np.uint8(FinishCode.LENGTH))
        drawn = Drawn(self._tokens[: rows.size], None, codes)
        incarnations = self._table.incarnation[rows]
        return Run(
            rows=rows,
            incarnations=incarnations,
            draws=plan.draws,
            drawn=drawn,
            logprobs=None,
            mark=None,
            eager_reason="",
        )


def measure_loop(batches: Sequence[int], steps: int, functions: int) -> dict[str, Any]:
    """Time the host's part of decode steps.

    Args:
        batches: sequences of a step.
        steps: timed steps of each batch.
        functions: how many of the costliest functions to name; they are measured in a round of their own.
    """
    return {
        "benchmark": "loop",
        "steps": steps,
        "batches": {str(batch): _measure(batch, steps, functions) for batch in batches},
        "machine": describe_machine(),
    }


class _Window:
    """What the steps in the middle of a round cost: neither the prompts' step nor the end is in it."""

    def __init__(self, metrics: RankMetrics, steps: int) -> None:
        self._metrics = metrics
        self._edges = (_WARM_UP, _WARM_UP + steps)
        self._steps = 0
        self._seen: list[dict[str, float]] = []

    def on_step(self) -> None:
        """Count a step; at the window's edges look at the clocks."""
        self._steps += 1
        if self._steps in self._edges:
            phases = {name: histogram.sum for (name,), histogram in self._metrics.iteration_host_seconds.items()}
            self._seen.append(phases | {"processor": time.thread_time()})

    def us_per_step(self) -> dict[str, float]:
        """Return each phase's mean, and that of the processor's time, which other programs do not disturb as much."""
        first, last = self._seen
        count = self._edges[1] - self._edges[0]
        return {name: round((last[name] - first[name]) / count * 1e6, 2) for name in last}


def _measure(batch: int, steps: int, functions: int) -> dict[str, Any]:
    outlet, metrics = CountingOutlet(), RankMetrics(CollectorRegistry(), 0)
    window = _Window(metrics, steps)
    loop = _build(batch, steps, outlet, metrics, window.on_step)
    gc.collect()
    gc.freeze()  # as in a rank
    try:
        loop.run()
    finally:
        gc.unfreeze()
    spans = np.diff(outlet.steps_s)[_WARM_UP:-_WARM_UP]
    means = window.us_per_step()
    result = {"us": summarize(spans.tolist()), "processor_us": means.pop("processor"), "us_by_phase": means}
    if functions:
        result["functions"] = _list_costliest(batch, steps, functions)
    return result


def _build(
    batch: int, steps: int, outlet: CountingOutlet, metrics: RankMetrics, on_step: Callable[[], None] | None = None
) -> Loop:
    """Put a loop together that runs one round; the prompts are computed in its first step."""
    workload = Workload("tiny", _PROMPT, steps + 2 * _WARM_UP, temperature=1.0)
    longest = _PROMPT + workload.output + 1
    blocks = -(-longest // BLOCK_SIZE)
    table, pool = SlotTable(batch, longest, blocks), BlockPool(batch * blocks, BLOCK_SIZE, prefix_cache=True)
    comm, requests = SingleComm(), workload.requests(batch, workload.output, seed=0)
    parts = Parts(
        comm=comm,
        topology=ALONE,
        router=Router(comm, ALONE, pool, metrics, cache_aware=True),
        scheduler=Scheduler(table, pool, batch * _PROMPT),
        runner=_CannedRunner(table),
        detector=HangDetector(0, on_hang=lambda hang: None),
        metrics=metrics,
        source=Scripted(outlet, iter([requests]), on_step),
        publisher=outlet,
    )
    return Loop(parts, max_model_len=longest, overlap=True)


def _list_costliest(batch: int, steps: int, count: int) -> list[dict[str, Any]]:
    """Name the functions that take most of a step's own time; the profiler slows them, so only shares mean much."""
    profiler = cProfile.Profile(time.thread_time)
    loop = _build(batch, steps, CountingOutlet(), RankMetrics(CollectorRegistry(), 0))
    profiler.runcall(loop.run)
    total = steps + 2 * _WARM_UP
    profiler.create_stats()
    found = sorted(profiler.stats.items(), key=lambda item: item[1][2], reverse=True)[:count]
    return [
        {
            "function": f"{file.rpartition('/')[2]}:{name}" if line else name,
            "calls_per_step": round(calls / total, 2),
            "own_us_per_step": round(own / total * 1e6, 2),
            "us_per_step": round(whole / total * 1e6, 2),
        }
        for (file, line, name), (_, calls, own, whole, _) in found
    ]

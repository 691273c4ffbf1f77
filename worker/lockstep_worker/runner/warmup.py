"""What a rank with a GPU does between its load and its first request, so that no request pays for it.

First it finds out how much memory the largest run takes, for that memory cannot hold blocks; then, with the cache in
place, it captures its decodes. All ranks of a group do both in the same order.
"""

from __future__ import annotations

import gc
import logging

import numpy as np
import torch

from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError
from lockstep_worker.model.forward import Model
from lockstep_worker.model.progress import Progress
from lockstep_worker.runner.graphs import DecodeGraphs
from lockstep_worker.runner.runner import Runner
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.sequence import Int32, Sequence
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.params import Needs, SamplingParams

log = logging.getLogger(__name__)

_USUAL = (Needs(), Needs(sampling=True))
"""Greedy rows, and rows of which some are drawn; what else a batch may need is captured when it comes."""
_COSTLIEST = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)
"""A draw that takes the most memory: the whole vocabulary is sorted."""


def measure_run(model: Model, config: Config) -> int:
    """Run the largest batch once, sampler and logits included, and return the bytes that it took at its peak.

    The cache that it needs is made for it; `Model.create_cache` comes after.

    Raises:
        ConfigError: it does not fit beside the weights; names the options to lower.
    """
    counts = _largest_batch(config)
    widths = -(-counts // config.block_size)
    table = SlotTable(counts.size, int(counts.max()) + 1, int(widths.max()))
    plan = Plan(
        rows=np.arange(counts.size, dtype=np.int32),
        starts=np.zeros_like(counts),
        counts=counts,
        draws=np.ones_like(counts),
        num_decodes=0,
    )
    try:
        model.create_cache(int(widths.sum()), config.block_size)
        blocks = iter(range(int(widths.sum())))
        for handle in reversed(range(counts.size)):
            prompt = np.zeros(counts[handle], dtype=np.int32)
            slot = table.admit(Sequence(handle, _COSTLIEST, prompt.size, prompt.size + 1, prompt))
            table.set_blocks(slot, [next(blocks) for _ in range(int(widths[slot]))])
        runner = Runner(model, table, config.block_size, int(counts.sum()))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        runner.collect(runner.run(plan))
        return torch.cuda.max_memory_allocated() - before
    except torch.cuda.OutOfMemoryError as error:
        raise ConfigError(
            [
                f"max_num_tokens: a forward of {counts.sum()} tokens with {counts.size} draws does not fit beside the "
                "weights; lower max_num_tokens or max_batch_size"
            ]
        ) from error
    finally:
        torch.cuda.empty_cache()


def capture_decodes(graphs: DecodeGraphs) -> None:
    """Capture the usual decodes of every bucket, from the largest to the smallest, so that they share memory well.

    Raises:
        ConfigError: they do not fit beside weights and cache.
    """
    gc.collect()
    gc.freeze()  # each capture collects garbage, which must not walk the whole model each time
    kinds = [(bucket, needs) for bucket in reversed(graphs.buckets) for needs in _USUAL]
    progress = Progress("CUDA graphs", len(kinds), lambda count: f"{count} decodes")
    try:
        for bucket, needs in progress.follow(kinds):
            graphs.prepare(bucket, needs)
    except torch.cuda.OutOfMemoryError as error:
        raise ConfigError(
            ["kv_cache_memory_fraction: no memory is left to capture CUDA graphs; lower it, or use --no-graphs"]
        ) from error
    finally:
        gc.unfreeze()


def _largest_batch(config: Config) -> Int32:
    """Share the budget's tokens among as many rows as may draw at once: [rows], none empty."""
    rows = min(config.max_batch_size, config.max_num_tokens)
    counts = np.full(rows, config.max_num_tokens // rows, dtype=np.int32)
    counts[0] += config.max_num_tokens - counts.sum()
    return counts

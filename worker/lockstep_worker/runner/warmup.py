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
from lockstep_worker.runner.capture import CannotCaptureError, Capture, WaitsForDeviceError
from lockstep_worker.runner.runner import Runner
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.sequence import Int32, Sequence
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.params import Needs, SamplingParams

log = logging.getLogger(__name__)

_USUAL = (Needs(), Needs(sampling=True))
"""Greedy rows, and rows of which some are drawn; what else a batch may need is captured when it comes."""
COSTLIEST = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9, repetition_penalty=1.1)
"""A draw that takes the most memory: the whole vocabulary is counted, and sorted."""


def measure_run(model: Model, config: Config, max_model_len: int) -> int:
    """Run the largest batch once, sampler and logits included, and return the bytes that it took at its peak.

    Batches of other kinds run beside it, so that no request waits until their kernels are compiled. The cache that they
    need is made for them; `Model.create_cache` comes after.

    Raises:
        ConfigError: it does not fit beside the weights; names the options to lower.
    """
    batches = list_batches(config, max_model_len)
    try:
        model.create_cache(max(int(_widths(counts, config).sum()) for counts in batches), config.block_size)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for counts in batches:
            run_once(model, config, counts)
        return torch.cuda.max_memory_allocated() - before
    except torch.cuda.OutOfMemoryError as error:
        raise ConfigError(
            [
                f"max_num_tokens: a forward of {batches[0].sum()} tokens with {batches[0].size} draws does not fit "
                "beside the weights; lower max_num_tokens or max_batch_size"
            ]
        ) from error
    finally:
        model.drop_cache()
        torch.cuda.empty_cache()


def list_batches(config: Config, max_model_len: int) -> list[Int32]:
    """List batches of prompts by the tokens of each row: the largest, a long one, a short one, and one mixed."""
    longest = min(config.max_num_tokens, max_model_len - 1)
    rows = config.max_batch_size  # the configuration holds it to the tokens of a step
    counts = np.full(rows, min(config.max_num_tokens // rows, longest), dtype=np.int32)
    counts[0] = min(config.max_num_tokens - counts[1:].sum(), longest)
    mixed = [longest // 2, 1] if longest > 1 and rows > 1 else [longest]
    others = [[longest], [min(16, longest)], mixed]
    return [counts, *(np.array(one, dtype=np.int32) for one in others)]


def run_once(model: Model, config: Config, counts: Int32) -> None:
    """Run prompts of so many tokens once, each with a draw, in a slot table of their own."""
    widths = _widths(counts, config)
    table = SlotTable(counts.size, int(counts.max()) + 1, int(widths.max()))
    blocks = iter(range(int(widths.sum())))
    slots = []
    for handle, (count, width) in enumerate(zip(counts.tolist(), widths.tolist(), strict=True)):
        prompt = np.zeros(count, dtype=np.int32)
        slots.append(table.admit(Sequence(handle, COSTLIEST, count, count + 1, prompt)))
        table.set_blocks(slots[-1], [next(blocks) for _ in range(width)])
    plan = Plan(
        rows=np.array(slots, dtype=np.int32),
        starts=np.zeros_like(counts),
        counts=counts,
        draws=np.ones_like(counts),
        num_decodes=0,
    )
    runner = Runner(model, table, config.block_size, int(counts.sum()))
    runner.collect(runner.run(plan))


def _widths(counts: Int32, config: Config) -> Int32:
    """Count the blocks of each row."""
    widths: Int32 = -(-counts // config.block_size)
    return widths


def capture_decodes(runner: Runner, max_model_len: int, capture: Capture) -> None:
    """Capture the usual decodes of every bucket, from the largest to the smallest, so that they share memory well.

    A network whose forward waits for the device runs eager, and the log says so.

    Raises:
        ConfigError: they do not fit beside weights and cache.
    """
    gc.collect()
    gc.freeze()  # each capture collects garbage, which must not walk the whole model each time
    try:
        graphs = runner.use_graphs(capture, max_model_len)
        kinds = [(bucket, needs) for bucket in reversed(graphs.buckets) for needs in _USUAL]
        for bucket, needs in Progress("CUDA graphs", len(kinds), lambda count: f"{count} decodes").follow(kinds):
            graphs.prepare(bucket, needs)
    except WaitsForDeviceError as error:
        log.warning("decodes run eager: of their program it was found that %s", error)
        runner.run_eager_only()
    except (torch.cuda.OutOfMemoryError, CannotCaptureError) as error:
        raise ConfigError(
            [
                "kv_cache_memory_fraction: no memory is left to capture CUDA graphs; lower it, or num_blocks where "
                "that is set, or use --no-graphs"
            ]
        ) from error
    finally:
        gc.unfreeze()

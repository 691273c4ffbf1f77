"""How a rank's loop is put together: the model first, then what fits beside it, then the loop's parts around both."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.config import Config
from lockstep_worker.executor.intake import Limits
from lockstep_worker.executor.loop import Loop, Parts, Source
from lockstep_worker.executor.publish import Publisher
from lockstep_worker.executor.routing import Router
from lockstep_worker.health.hang import HangDetector
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.metrics.tables import STARTUP_PARTS
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.comm import Comm, local_rank
from lockstep_worker.parallel.groups import form_groups
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.runner.capacity import (
    choose_device,
    choose_max_model_len,
    choose_num_blocks,
    create_cache,
)
from lockstep_worker.runner.capture import CudaCapture
from lockstep_worker.runner.runner import Runner
from lockstep_worker.runner.warmup import capture_decodes, measure_run
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.slots import SlotTable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to run, and what fits beside it, the same on every rank of the group."""

    model: Model
    topology: Topology
    """With its process groups."""
    max_model_len: int
    num_blocks: int

    def limits(self, config: Config) -> Limits:
        """Say what a request must fit into."""
        return Limits(self.model.vocab_size, self.max_model_len, self.num_blocks, config.block_size)


@dataclass(frozen=True, slots=True)
class Seams:
    """What connects a loop to its rank: peers, watch, metrics, and the two ends of the link."""

    comm: Comm
    detector: HangDetector
    metrics: RankMetrics
    intake: Source | None
    """On rank 0."""
    publisher: Publisher | None
    """On the first rank of each data replica."""


def load(config: Config, comm: Comm, topology: Topology, metrics: RankMetrics) -> Loaded:
    """Load this rank's part of the model and share out the memory that is left; all ranks do it together.

    Raises:
        ConfigError: something that is configured does not fit.
        UnsupportedModel: the model cannot be served right.
    """
    device = choose_device(config.device, local_rank())
    log.info("loading %s on %s as rank %d of %d", config.model, device, comm.rank, comm.size)
    start = time.monotonic()
    topology = form_groups(comm, topology, device)
    model = load_model(
        config.model,
        device=device,
        dtype=config.dtype,
        topology=topology,
        fast_path=config.fast_path,
        batch_invariant=config.batch_invariant,
    )
    metrics.startup_seconds[("load",)].set(time.monotonic() - start)
    log.info("the model is loaded after %.1f s", time.monotonic() - start)
    max_model_len = choose_max_model_len(config.max_model_len, model.max_model_len)
    start = time.monotonic()
    run_bytes = measure_run(model, config, max_model_len) if device.type == "cuda" else 0
    if config.graphs:
        run_bytes *= 2  # captured runs keep as much in a pool of their own
    metrics.startup_seconds[("measure",)].set(time.monotonic() - start)
    mine = choose_num_blocks(config, model.kv_bytes_per_block(config.block_size), max_model_len, device, run_bytes)
    num_blocks = min(row[0] for row in comm.gather_once([mine]))  # also: every rank has loaded its part
    create_cache(model, config, num_blocks)
    log.info(
        "KV cache: %d blocks of %d tokens; a request may have up to %d tokens",
        num_blocks,
        config.block_size,
        max_model_len,
    )
    return Loaded(model, topology, max_model_len, num_blocks)


def describe_start(metrics: RankMetrics, whole_s: float) -> str:
    """Say how long a start took, and each of its parts; the rest is the cache, the frontend and waiting for peers.

    Args:
        metrics: with the parts' times.
        whole_s: seconds from the rank's beginning, torch imported, to readiness.
    """
    parts = (f"{part} {metrics.startup_seconds[(part,)].value:.1f} s" for part in STARTUP_PARTS)
    return f"ready after {whole_s:.1f} s: {', '.join(parts)}"


def _capture(runner: Runner, max_model_len: int, metrics: RankMetrics) -> None:
    start = time.monotonic()
    capture_decodes(runner, max_model_len, CudaCapture())
    metrics.startup_seconds[("capture",)].set(time.monotonic() - start)


def assemble(config: Config, loaded: Loaded, seams: Seams) -> Loop:
    """Build the loop around a loaded model."""
    model, topology, max_model_len = loaded.model, loaded.topology, loaded.max_model_len
    table = SlotTable(config.max_batch_size, max_model_len, -(-max_model_len // config.block_size))
    pool = BlockPool(loaded.num_blocks, config.block_size, prefix_cache=config.prefix_cache)
    runner = Runner(model, table, config.block_size, config.max_num_tokens, topology)
    is_alone = topology.tensor.size == 1 and not topology.runs_together  # captured collectives were never run
    if config.graphs and model.is_replayable and is_alone:
        _capture(runner, max_model_len, seams.metrics)
    seams.metrics.forward_info[(model.path, model.attention_name)].set(1)
    parts = Parts(
        comm=seams.comm,
        topology=topology,
        router=Router(seams.comm, topology, pool, seams.metrics, cache_aware=config.is_cache_aware),
        scheduler=Scheduler(table, pool, config.max_num_tokens),
        runner=runner,
        detector=seams.detector,
        metrics=seams.metrics,
        source=seams.intake,
        publisher=seams.publisher,
    )
    return Loop(parts, max_model_len=max_model_len, overlap=config.overlap, debug_checks=config.debug_checks)

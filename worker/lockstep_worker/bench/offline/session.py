"""A rank's own loop around a model with random weights, fed by a script in the same process."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from prometheus_client import CollectorRegistry

from lockstep_worker.bench.offline.ends import CountingOutlet, Scripted
from lockstep_worker.bench.offline.network import dummy_model
from lockstep_worker.bench.offline.shapes import SHAPES, draw_prompts
from lockstep_worker.compile_cache import cache_variables
from lockstep_worker.config import Config, load_config
from lockstep_worker.executor.loop import Loop
from lockstep_worker.health.hang import HangDetector
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.model.loader import DTYPES
from lockstep_worker.parallel.comm import SingleComm
from lockstep_worker.parallel.topology import ALONE
from lockstep_worker.rank.assemble import Loaded, Seams, assemble
from lockstep_worker.runner.capacity import choose_device
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams

_PREFILL_TOKENS = 8192
_CONTEXT = 2048
"""The context limit, unless the workload is longer; a captured step is laid out for it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one length that start together."""

    shape: str
    """A name in `SHAPES`."""
    prompt: int
    """Tokens of each prompt."""
    output: int
    """Decode steps that are timed; a request draws one token more, from its prompt."""
    temperature: float
    """0 is greedy."""

    def requests(self, batch: int, output: int, seed: int) -> list[NewRequest]:
        """Draw a round of requests; each ends after `output` tokens and at no token of its own."""
        params = [SamplingParams(max_tokens=output, temperature=self.temperature, seed=one) for one in range(batch)]
        prompts = draw_prompts(self.shape, batch, self.prompt, seed)
        return [
            NewRequest(handle, prompt, one)
            for handle, (prompt, one) in enumerate(zip(prompts, params, strict=True), start=1)
        ]


class Session:
    """A loaded model, its loop's metrics, and where its tokens come out.

    Args:
        workload: what will run.
        most: sequences of the largest batch.
        options: of `serve`, as text by field name; they win over what the workload asks for.

    Raises:
        ConfigError: an option is unknown or wrong, or something does not fit.
    """

    def __init__(self, workload: Workload, most: int, options: Mapping[str, str]) -> None:
        self.config = _configure(workload, most, options)
        os.environ.update(cache_variables(self.config.compile_cache))  # before anything is compiled
        self.device = choose_device(self.config.device, local_rank=0)
        dtype = _choose_dtype(self.config, self.device)
        self.model = dummy_model(
            SHAPES[workload.shape],
            self.device,
            dtype,
            fast_path=self.config.fast_path,
            batch_invariant=self.config.batch_invariant,
        )
        self.metrics = RankMetrics(CollectorRegistry(), 0)
        self.outlet = CountingOutlet()

    def run(
        self,
        script: Iterator[list[NewRequest]],
        on_step: Callable[[], None] | None = None,
        prepare: Callable[[Loop], None] = lambda loop: None,
    ) -> None:
        """Put the loop together, prepare it and run a script through it, to its end; see `Scripted`."""
        loop = self._assemble(Scripted(self.outlet, script, on_step))
        prepare(loop)
        gc.collect()
        gc.freeze()  # as a rank does: a collection must not walk the model in the middle of a step
        try:
            loop.run()
        finally:
            gc.unfreeze()

    def _assemble(self, source: Scripted) -> Loop:
        config, longest = self.config, self.config.max_model_len
        assert config.num_blocks is not None and longest is not None, "_configure sets them"
        self.model.create_cache(config.num_blocks, config.block_size)
        loaded = Loaded(self.model, ALONE, longest, config.num_blocks)
        detector = HangDetector(0, on_hang=lambda hang: None)
        return assemble(config, loaded, Seams(SingleComm(), detector, self.metrics, source, self.outlet))


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _configure(workload: Workload, most: int, options: Mapping[str, str]) -> Config:
    """Make room for the workload: blocks for all its tokens and one more a row, and no prefix cache."""
    longest = workload.prompt + workload.output + 1
    block_size = int(options.get("block_size", 16))
    return load_config(
        {
            "model": ".",
            "max_batch_size": str(most),
            "max_num_tokens": str(max(_PREFILL_TOKENS, most)),
            "max_model_len": str(max(_CONTEXT, longest)),
            "num_blocks": str(max(most * (1 - (-longest // block_size)), -(-_CONTEXT // block_size))),
            "prefix_cache": "false",
            **options,
        },
        {},
    )


def _choose_dtype(config: Config, device: torch.device) -> torch.dtype:
    """Take the configured type; by itself what each kind of device is served in."""
    return DTYPES.get(config.dtype, torch.bfloat16 if device.type == "cuda" else torch.float32)

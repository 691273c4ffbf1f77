"""vLLM's process: whatever version can be imported, through its offline class, with random weights."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.common import Limits, Round, open_channel, own_flags, serve, tell_ready, timed

_BLOCK_SIZE = 16


def choose_flags(limits: Limits, given: dict[str, Any]) -> dict[str, Any]:
    """Tune vLLM for the limits: a graph for every batch that is asked for; what is given wins."""
    most = limits.max_sequences
    sizes = sorted({size for size in (1, 2, 4, 8, *range(16, most + 1, 16), most) if size <= most})
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enable_prefix_caching": False,
        "max_num_seqs": most,
        "max_num_batched_tokens": limits.batched_tokens,
        "max_model_len": limits.context,
        "num_gpu_blocks_override": -(-limits.cache_tokens // _BLOCK_SIZE),
        "gpu_memory_utilization": 0.45,
        "seed": 0,
        "generation_config": "vllm",
        "compilation_config": {"cudagraph_capture_sizes": sizes},
        **given,
    }


def main() -> None:
    """Load, then answer rounds."""
    channel, start = open_channel(), time.perf_counter()
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - it prints while it is imported

    limits = Limits.from_command_line()
    flags = choose_flags(limits, own_flags())
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(limits.config))
    model = LLM(model=str(folder), **flags)
    tell_ready(channel, "vllm", flags, time.perf_counter() - start)

    def run(asked: Round) -> tuple[int, float]:
        sampling = SamplingParams(
            temperature=asked.temperature, max_tokens=asked.output, ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": ids} for ids in asked.prompts(limits.shape)]
        return timed(
            lambda: sum(len(one.outputs[0].token_ids) for one in model.generate(prompts, sampling, use_tqdm=False))
        )

    serve(channel, run)


if __name__ == "__main__":
    main()

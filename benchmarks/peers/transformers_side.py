"""The process of transformers' continuous batching, with random weights."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.peers.common import Limits, Round, open_channel, own_flags, serve, tell_ready, timed

_BLOCK_SIZE = 256
_LONGEST_WAIT_S = 1.0


def choose_flags(limits: Limits, given: dict[str, Any]) -> dict[str, Any]:
    """Tune it for the limits: graphs, asynchronous batching, compiled; `attention` and what else is given wins."""
    return {
        "attention": "sdpa",
        "use_cuda_graph": True,
        "use_async_batching": True,
        "allow_block_sharing": False,
        "max_batch_tokens": limits.batched_tokens,
        "max_requests_per_batch": limits.max_sequences,
        "num_blocks": -(-limits.cache_tokens // _BLOCK_SIZE) + limits.max_sequences,
        "default_compile_level": 1,
        **given,
    }


def main() -> None:
    """Load, then answer rounds from one manager, as a server would have it."""
    channel, start = open_channel(), time.perf_counter()
    limits = Limits.from_command_line()
    flags = choose_flags(limits, own_flags())
    attention = flags["attention"]
    batching = ContinuousBatchingConfig(**{name: value for name, value in flags.items() if name != "attention"})
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**limits.config), dtype=torch.bfloat16, attn_implementation=f"paged|{attention}"
        ).eval()
    generation = GenerationConfig(
        max_new_tokens=limits.context, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True
    )
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching
    ) as manager:
        tell_ready(channel, "transformers", flags, time.perf_counter() - start)

        def run(asked: Round) -> tuple[int, float]:
            assert asked.temperature == 0, "this manager draws all requests alike, and was made greedy"
            prompts = asked.prompts(limits.shape)
            return timed(lambda: _generate(manager, prompts, asked.output))

        serve(channel, run)


def _generate(manager: Any, prompts: list[list[int]], output: int) -> int:
    """Run one round and count its tokens."""
    manager.add_requests(prompts, max_new_tokens=output)
    tokens = done = 0
    while done < len(prompts):
        result = manager.get_result(timeout=_LONGEST_WAIT_S)
        if result is None:
            assert manager.is_running(), "the manager stopped"
            continue
        assert not result.error, result.error
        if result.is_finished():
            done += 1
            tokens += len(result.generated_tokens)
    return tokens


if __name__ == "__main__":
    main()

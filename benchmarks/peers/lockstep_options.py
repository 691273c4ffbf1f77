"""The limits as options of Lockstep's `serve`; apart from its process, so that nobody else has to import torch."""

from __future__ import annotations

from benchmarks.peers.common import Limits


def choose_options(limits: Limits, given: dict[str, str]) -> dict[str, str]:
    """Give the limits as options of `serve`; what is given wins."""
    block_size = int(given.get("block_size", 16))
    return {
        "max_num_tokens": str(max(limits.batched_tokens, limits.max_sequences)),
        "max_model_len": str(limits.context),
        "num_blocks": str(-(-limits.cache_tokens // block_size) + limits.max_sequences),
        "prefix_cache": "false",
        **given,
    }

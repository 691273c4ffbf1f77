"""Models by name, and the fewest milliseconds that a decode step of theirs can take. Standard library only.

The shapes are those of Qwen3's dense models, which other engines know too, so that every engine can be given the same
configuration; `tiny` is for a try without a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

COPY_RATE = 4.3e12
"""Bytes a second that the memory of an H200 was measured to move."""
_COMMON: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "sliding_window": None,
    "initializer_range": 0.02,
    "use_cache": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": None,
}
_OWN = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "tie_word_embeddings")
SHAPES: Mapping[str, Mapping[str, Any]] = {
    name: {**_COMMON, **dict(zip(_OWN, values, strict=True)), **changes}
    for name, values, changes in (
        ("tiny", (64, 2, 4, 128, True), {"vocab_size": 512, "num_key_value_heads": 2, "head_dim": 16}),
        ("0.6b", (1024, 28, 16, 3072, True), {}),
        ("4b", (2560, 36, 32, 9728, True), {}),
        ("8b", (4096, 36, 32, 12288, False), {}),
    )
}
"""What `config.json` would hold, by name."""


def floor_ms(shape: str, batch: int, context: float, bytes_per_number: int = 2) -> float:
    """Compute the fewest milliseconds of a decode step: weights and cache read once at `COPY_RATE`.

    Args:
        shape: a name in `SHAPES`.
        batch: sequences of the step.
        context: tokens of each in the cache, on average.
        bytes_per_number: of the weights and of the cache.
    """
    config = SHAPES[shape]
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    queries, cached = (config["head_dim"] * config[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    layer = hidden * (queries + 2 * cached) + queries * hidden + 3 * hidden * inner
    weights = layer * layers + hidden * config["vocab_size"]
    return bytes_per_number * (weights + 2 * cached * layers * batch * context) / COPY_RATE * 1e3


def draw_prompts(shape: str, batch: int, length: int, seed: int) -> list[list[int]]:
    """Draw prompts of random token ids, the same for every engine that is given the same arguments."""
    vocab_size = SHAPES[shape]["vocab_size"]
    rng = random.Random(f"{seed} {batch}")
    return [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(batch)]

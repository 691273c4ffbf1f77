"""Random models of several families, a few thousand weights each, saved as transformers saves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

VOCAB = 96

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # large, so that logits differ clearly and attention is not uniform
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOWED = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama3-rope": lambda: hf.LlamaConfig(**SIZES, rope_parameters=_llama3_rope(), attention_bias=True),
    "qwen2": lambda: hf.Qwen2Config(**SIZES),
    "qwen3": lambda: hf.Qwen3Config(**SIZES, tie_word_embeddings=True),
    "qwen3-window": lambda: hf.Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "mistral-window": lambda: hf.MistralConfig(**SIZES, sliding_window=6),
    "gpt_oss": lambda: hf.GptOssConfig(
        **SIZES, **EXPERTS, num_local_experts=4, sliding_window=4, layer_types=WINDOWED, rope_parameters=_default_rope()
    ),
    "gemma2": lambda: hf.Gemma2Config(
        **SIZES, query_pre_attn_scalar=16, sliding_window=6, attn_logit_softcapping=3.0, layer_types=WINDOWED
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(**SIZES, query_pre_attn_scalar=16, sliding_window=6, layer_types=WINDOWED),
    "phi3": lambda: hf.Phi3Config(**SIZES),
    "olmo2": lambda: hf.Olmo2Config(**SIZES),
    "granite": lambda: hf.GraniteConfig(**SIZES, attention_multiplier=0.3, logits_scaling=2.0),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts=4, moe_intermediate_size=16),
}


def save_tiny_model(family: str, folder: Path, **sizes: int) -> Path:
    """Build a family's model with fixed random weights and save it; biases, norms and sinks are random too.

    Args:
        sizes: fields of the configuration that shall have other values.
    """
    torch.manual_seed(11)
    config = CONFIGS[family]()
    for name, value in sizes.items():
        setattr(config, name, value)
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or "bias" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    path = folder / family
    model.save_pretrained(path)
    return path


def _default_rope() -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0}


def _llama3_rope() -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }

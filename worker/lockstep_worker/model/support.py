"""Which models can be served right. A model that cannot is refused by name at start, never served wrong.

The configuration says most of it; what it does not say shows when the loaded model runs once (`probe.py`).
"""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForCausalLM

from lockstep_worker.errors import UnsupportedModel
from lockstep_worker.model.split.tensor import count_kv_heads

SERVED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings whose frequencies follow the longest sequence of a batch: one request would change another."""

REFUSED_SETTINGS = {
    "is_encoder_decoder": "it is an encoder-decoder model",
    "kv_lora_rank": "it has multi-head latent attention",
    "num_kv_shared_layers": "some of its layers share keys and values",
    "use_bidirectional_attention": "its attention is bidirectional",
    "attention_chunk_size": "it has chunked attention",
    "global_head_dim": "its layers differ in head size",
    "num_global_key_value_heads": "its layers differ in KV heads",
    "quantization_config": "its weights are quantised",
}


def check_supported(config: Any, tensor_parallel: int = 1) -> None:
    """Refuse a model that this engine cannot serve right.

    Args:
        config: the model's transformers configuration, as loaded.
        tensor_parallel: ranks that share the model's weights.

    Raises:
        UnsupportedModel: names the model's type and every reason.
    """
    text = config.get_text_config(decoder=True)
    reasons = [reason for name, reason in REFUSED_SETTINGS.items() if _is_set(config, text, name)]
    reasons += _class_reasons(text)
    reasons += _layer_reasons(text)
    reasons += _head_reasons(text, tensor_parallel)
    if reasons:
        raise UnsupportedModel(f"model type {config.model_type!r} cannot be served: {'; '.join(reasons)}")


def _is_set(config: Any, text: Any, name: str) -> bool:
    return bool(getattr(config, name, None)) or bool(getattr(text, name, None))


def _class_reasons(text: Any) -> list[str]:
    """Say why transformers cannot run the model with our attention."""
    model_class = AutoModelForCausalLM._model_mapping.get(type(text), None)
    if model_class is None:
        return ["transformers has no causal language model of this type"]
    reasons = []
    if getattr(model_class, "_is_stateful", False):
        reasons.append("it keeps a recurrent state beside or instead of attention")
    if not getattr(model_class, "_supports_attention_backend", False):
        reasons.append("its attention cannot be replaced")
    return reasons


def _layer_reasons(text: Any) -> list[str]:
    reasons = []
    kinds = sorted(set(getattr(text, "layer_types", None) or ()) - SERVED_LAYER_TYPES)
    if kinds:
        reasons.append(f"it has layers of type {', '.join(kinds)}")
    ropes = sorted(BATCH_DEPENDENT_ROPE & _rope_types(getattr(text, "rope_parameters", None) or {}))
    if ropes:
        reasons.append(f"its rotary embedding of type {ropes[0]} depends on the other requests of a batch")
    return reasons


def _rope_types(parameters: dict[str, Any]) -> set[str]:
    """Collect the rope types of one set of parameters or of one set a layer type."""
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(one.get("rope_type", "default")) for one in [parameters, *nested]}


def _head_reasons(text: Any, tensor_parallel: int) -> list[str]:
    heads = getattr(text, "num_attention_heads", None)
    if not isinstance(heads, int):
        return ["its layers do not all have the same attention heads"]
    reasons = []
    if heads % tensor_parallel:
        reasons.append(f"its {heads} attention heads do not divide by tensor parallelism {tensor_parallel}")
    kv_heads = count_kv_heads(text)
    is_shared = tensor_parallel % kv_heads == 0  # fewer heads than ranks: several ranks hold the same one
    if kv_heads % tensor_parallel and not is_shared:
        size = tensor_parallel
        reasons.append(f"its {kv_heads} KV heads are neither a multiple nor a divisor of tensor parallelism {size}")
    return reasons

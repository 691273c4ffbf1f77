"""Takes the weights of a network for the fast path, without a second copy of them.

A layer's three attention projections become one matrix, as do the two of its MLP; the network's own weights become
views of these, so that transformers' forward still runs, on the same memory. Layer by layer: the peak is one layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lockstep_worker.model.dense.obstacles import find_obstacle
from lockstep_worker.model.dense.weights import DenseLayer, DenseWeights


def take_weights(network: Any, max_positions: int, tensor_parallel: int = 1) -> DenseWeights | str:
    """Merge a network's weights for the fast path, or say why the network is not for it and leave it as it was.

    Args:
        network: a loaded transformers causal language model; its projections become views of the merged weights.
        max_positions: length of the table of angles; no position reaches it.
        tensor_parallel: ranks that share the weights.
    """
    obstacle = find_obstacle(network, tensor_parallel)
    if obstacle is not None:
        return obstacle
    decoder = network.model
    attention = decoder.layers[0].self_attn
    size = int(attention.head_dim)
    layers = tuple(_take_layer(layer, _window_of(network, layer.self_attn)) for layer in decoder.layers)
    return DenseWeights(
        embedding=decoder.embed_tokens.weight.data,
        layers=layers,
        final_norm=decoder.norm.weight.data,
        head=network.lm_head.weight.data,
        cos_sin=_table(decoder.rotary_emb, max_positions, network.device),
        query_heads=attention.q_proj.out_features // size,
        kv_heads=attention.k_proj.out_features // size,
        head_dim=size,
        scaling=float(attention.scaling),
        eps=float(decoder.norm.variance_epsilon),
    )


def _take_layer(layer: Any, window: int | None) -> DenseLayer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    has_norms = hasattr(attention, "q_norm")
    return DenseLayer(
        input_norm=layer.input_layernorm.weight.data,
        qkv=_merge([one.weight for one in projections]),
        qkv_bias=_merge([one.bias for one in projections]) if attention.q_proj.bias is not None else None,
        query_norm=attention.q_norm.weight.data if has_norms else None,
        key_norm=attention.k_norm.weight.data if has_norms else None,
        out=attention.o_proj.weight.data,
        post_norm=layer.post_attention_layernorm.weight.data,
        gate_up=_merge([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight.data,
        sliding_window=window,
    )


def _merge(parts: list[nn.Parameter]) -> Tensor:
    """Put parameters behind one another along their first dimension; they become views of the result."""
    merged = torch.cat([part.data for part in parts])
    for part, view in zip(parts, torch.split(merged, [len(part) for part in parts]), strict=True):
        part.data = view
    return merged


def _window_of(network: Any, attention: Any) -> int | None:
    """Mistral's attention asks its configuration, Qwen's knows its layer's own, Llama's has none."""
    if type(network).__name__ == "MistralForCausalLM":
        window = getattr(attention.config, "sliding_window", None)
    else:
        window = getattr(attention, "sliding_window", None)
    return None if window is None else int(window)


@torch.no_grad()
def _table(rotary: Any, max_positions: int, device: torch.device) -> Tensor:
    """Have the network's own rotary embedding, scaled as it may be, compute every position; [L, D], float32."""
    positions = torch.arange(max_positions, device=device)[None]
    cos, sin = rotary(torch.empty(0, dtype=torch.float32, device=device), positions)
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)

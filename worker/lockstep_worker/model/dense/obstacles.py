"""Which transformers networks the fast path can run, said by a list of classes and by their modules, not by absence.

A class that is not on the list may scale, clip or norm where no module shows it, so it is refused however familiar its
modules look. A class on the list is still checked: a checkpoint may bring biases, a partial rotary embedding or layers
of another kind. A reason is no error: transformers' own forward runs the network then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

FAMILIES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Classes of transformers whose forward is the one in `DenseForward`."""

FIXED_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles follow from the position alone."""

NETWORK = {"model", "lm_head"}
DECODER = {"embed_tokens", "layers", "norm"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj"}


def find_obstacle(network: Any, tensor_parallel: int) -> str | None:
    """Say why the fast path cannot run a network; None when it can.

    Args:
        network: a loaded transformers causal language model.
        tensor_parallel: ranks that share its weights.
    """
    if tensor_parallel != 1:
        return f"its weights are split over {tensor_parallel} ranks"
    kind = type(network)
    if kind.__name__ not in FAMILIES or not kind.__module__.startswith("transformers.models."):
        return f"{kind.__name__} is none of {', '.join(sorted(FAMILIES))}"
    for obstacle in _obstacles(network):
        return obstacle
    return None


def _obstacles(network: Any) -> Iterable[str]:
    """Yield what stands in the way; a later check relies on what earlier ones saw."""
    decoder = network.model
    yield from _differs(network, NETWORK, "network")
    yield from _differs(decoder, DECODER, "decoder")
    for index, layer in enumerate(decoder.layers):
        yield from _layer_obstacles(layer, f"layer {index}")
    yield from _head_obstacles(network)
    yield from _rotary_obstacles(decoder)
    yield from _norm_obstacles(decoder)
    yield from _tensor_obstacles(network)


def _differs(module: nn.Module, names: set[str], title: str) -> Iterable[str]:
    """Compare the parts that hold weights: transformers may hang functions in as modules too."""
    found = {name for name, child in module.named_children() if next(child.parameters(), None) is not None}
    if found != names:
        yield f"{title} has the weights {', '.join(sorted(found))}, not {', '.join(sorted(names))}"


def _layer_obstacles(layer: Any, title: str) -> Iterable[str]:
    yield from _differs(layer, LAYER, title)
    attention = layer.self_attn
    norms = HEAD_NORMS if hasattr(attention, "q_norm") else set()
    yield from _differs(attention, PROJECTIONS | norms, f"{title}'s attention")
    yield from _differs(layer.mlp, MLP, f"{title}'s MLP")
    if not _is_silu(layer.mlp.act_fn):
        yield f"{title}'s activation is {type(layer.mlp.act_fn).__name__}, not silu"
    for linear in _linears(layer):
        if type(linear) is not nn.Linear:
            yield f"{title} has a {type(linear).__name__} where a Linear is expected"
    biases = [one.bias is not None for one in (attention.q_proj, attention.k_proj, attention.v_proj)]
    if len(set(biases)) > 1:
        yield f"{title} has a bias on some of its query, key and value projections only"
    for linear in (attention.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
        if linear.bias is not None:
            yield f"{title} has a bias on its output or MLP projections"


def _linears(layer: Any) -> list[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    return [
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.o_proj,
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
    ]


def _is_silu(activation: nn.Module) -> bool:
    return isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"


def _head_obstacles(network: Any) -> Iterable[str]:
    if type(network.lm_head) is not nn.Linear or type(network.model.embed_tokens) is not nn.Embedding:
        yield "its embedding or its head is of an unknown kind"
    elif network.lm_head.bias is not None:
        yield "its head has a bias"


def _rotary_obstacles(decoder: Any) -> Iterable[str]:
    rotary, attention = decoder.rotary_emb, decoder.layers[0].self_attn
    if rotary.rope_type not in FIXED_ROPES:
        yield f"its rotary embedding is of type {rotary.rope_type}"
    if rotary.inv_freq.numel() * 2 != attention.head_dim:
        yield f"its rotary embedding turns {rotary.inv_freq.numel() * 2} of a head's {attention.head_dim} dimensions"
    scalings = {(layer.self_attn.head_dim, layer.self_attn.scaling) for layer in decoder.layers}
    if len(scalings) > 1:
        yield "its layers differ in head size or in the scale of their scores"
    if len({tuple(linear.weight.shape for linear in _linears(layer)) for layer in decoder.layers}) > 1:
        yield "its layers differ in size"
    if len({hasattr(layer.self_attn, "q_norm") for layer in decoder.layers}) > 1:
        yield "only some of its layers norm queries and keys"


def _norm_obstacles(decoder: Any) -> Iterable[str]:
    norms = [decoder.norm]
    for layer in decoder.layers:
        attention = layer.self_attn
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
        norms += [getattr(attention, name) for name in sorted(HEAD_NORMS) if hasattr(attention, name)]
    for norm in norms:
        if not type(norm).__name__.endswith("RMSNorm") or [name for name, _ in norm.named_parameters()] != ["weight"]:
            yield f"{type(norm).__name__} is no plain RMS norm"
            return
    epsilons = {float(norm.variance_epsilon) for norm in norms}
    if len(epsilons) > 1:
        yield f"its norms differ in epsilon: {', '.join(map(str, sorted(epsilons)))}"


def _tensor_obstacles(network: Any) -> Iterable[str]:
    kinds = {(parameter.dtype, parameter.device) for parameter in network.parameters()}
    if len(kinds) > 1:
        yield "its weights are of several dtypes or on several devices"
    elif any(dtype not in {torch.float32, torch.float16, torch.bfloat16} for dtype, _ in kinds):
        yield "its weights are of no floating dtype that kernels compute in"

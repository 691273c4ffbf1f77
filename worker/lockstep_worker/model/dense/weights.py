"""What the fast path takes from a network: weights merged for few large multiplications, and the numbers of its shape.

Shape legend: V vocabulary, E hidden size, H query heads, K KV heads, D head size, I inner size of the MLP, L longest
context. A weight is [out, in], as in `torch.nn.Linear`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """One decoder layer: norm, attention, residual, norm, gated MLP, residual."""

    input_norm: Tensor
    """[E]"""
    qkv: Tensor
    """[(H + 2 K) * D, E]: queries, then keys, then values; the network's own three weights are views of it"""
    qkv_bias: Tensor | None
    """[(H + 2 K) * D], or None where the projections have none"""
    query_norm: Tensor | None
    """[D], RMS norm of each query head before rotary embedding, or None"""
    key_norm: Tensor | None
    """[D], the same of each key head; there when `query_norm` is"""
    out: Tensor
    """[E, H * D]"""
    post_norm: Tensor
    """[E]"""
    gate_up: Tensor
    """[2 * I, E]: gate, then up; the network's own two weights are views of it"""
    down: Tensor
    """[E, I]"""
    sliding_window: int | None
    """as in `AttentionOptions`"""


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """A whole network, all tensors on one device, weights of one dtype."""

    embedding: Tensor
    """[V, E]"""
    layers: tuple[DenseLayer, ...]
    final_norm: Tensor
    """[E]"""
    head: Tensor
    """[V, E]; the embedding itself where the two are tied"""
    cos_sin: Tensor
    """float32 [L, D]: of each position the cosines of its D/2 angles, then the sines, both times the network's own
    attention factor; dimension d turns with d + D/2"""
    query_heads: int
    kv_heads: int
    head_dim: int
    scaling: float
    """factor on the attention scores"""
    eps: float
    """of all RMS norms"""

"""A tiny dense network of random weights, its cache, and a step of it in plain torch and float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.kernels.decode.attention_reference import attend_reference
from lockstep_worker.model.dense.decode_input import StepInput, heads_of
from lockstep_worker.model.dense.weights import DenseLayer, DenseWeights

EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    """A network's kind and size."""

    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    inner: int = 192
    vocabulary: int = 300
    layers: int = 2
    longest: int = 64
    normed: bool = False
    biased: bool = False
    window: int | None = None
    dtype: torch.dtype = torch.float16


def random_network(shape: Shape, device: str = "cpu") -> DenseWeights:
    generator = torch.Generator().manual_seed(7)

    def random(*size: int, around: float = 0.0) -> Tensor:
        spread = 0.1 if around or len(size) == 1 else 1 / math.sqrt(size[-1])
        return (torch.randn(*size, generator=generator) * spread + around).to(device, shape.dtype)

    size, dim = shape.hidden, shape.head_dim
    width = (shape.heads + 2 * shape.kv_heads) * dim
    layers = tuple(
        DenseLayer(
            input_norm=random(size, around=1.0),
            qkv=random(width, size),
            qkv_bias=random(width) if shape.biased else None,
            query_norm=random(dim, around=1.0) if shape.normed else None,
            key_norm=random(dim, around=1.0) if shape.normed else None,
            out=random(size, shape.heads * dim),
            post_norm=random(size, around=1.0),
            gate_up=random(2 * shape.inner, size),
            down=random(size, shape.inner),
            sliding_window=shape.window,
        )
        for _ in range(shape.layers)
    )
    angles = torch.arange(shape.longest)[:, None] / 1000 ** (torch.arange(0, dim, 2) / dim)
    embedding = random(shape.vocabulary, size)
    return DenseWeights(
        embedding=embedding,
        layers=layers,
        final_norm=random(size, around=1.0),
        head=embedding,
        cos_sin=torch.cat([angles.cos(), angles.sin()], 1).to(device),
        query_heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=dim,
        scaling=1 / math.sqrt(dim),
        eps=EPS,
    )


def random_cache(shape: Shape, blocks: int, block_size: int, device: str = "cpu") -> KVCache:
    cache = KVCache(
        num_layers=shape.layers,
        num_blocks=blocks,
        block_size=block_size,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        device=torch.device(device),
    )
    generator = torch.Generator(device).manual_seed(8)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_(generator=generator)
    return cache


def reference_step(weights: DenseWeights, cache: KVCache, step: StepInput) -> Tensor:
    """Logits [B, V]; writes the new tokens' keys and values to the cache."""
    x = weights.embedding[step.tokens].float()
    for index, layer in enumerate(weights.layers):
        bias = None if layer.qkv_bias is None else layer.qkv_bias.float()
        attended = attend_reference(
            F.linear(_norm(x, layer.input_norm), layer.qkv.float(), bias),
            layer.query_norm,
            layer.key_norm,
            weights.cos_sin,
            cache.keys[index],
            cache.values[index],
            step.block_tables,
            step.positions,
            heads_of(weights, layer),
        )
        x = x + F.linear(attended.flatten(1), layer.out.float())
        gate, up = F.linear(_norm(x, layer.post_norm), layer.gate_up.float()).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, layer.down.float())
    return F.linear(_norm(x, weights.final_norm), weights.head.float())


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight.float(), EPS)

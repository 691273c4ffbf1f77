"""What lies between a layer's qkv multiplication and its attention, in one kernel.

Query and key heads are normed (where the model does that) and turned by their position's angles; keys and values go
straight into the KV cache. The rounding is transformers': the norm as in `norm`, the table's cosines and sines rounded
to the dtype, each product and then their sum rounded. Source of the rotation: Su et al., "RoFormer", 2021, with the
halves of a head turned against each other, as checkpoints in Hugging Face's layout want it.

Shape legend: T tokens, H query heads, K KV heads, D head size, L positions of the table, C cells of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.norm import norm_reference

HEADS_PER_PROGRAM = 8
"""So that one token's heads spread over a few programs, and many tokens' programs still have work each."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """What is the same for all tokens of a layer."""

    cos_sin: Tensor
    """float32 [L, D]: D/2 cosines, then D/2 sines"""
    query_norm: Tensor | None
    """[D], or None for no norm; `key_norm` is there with it"""
    key_norm: Tensor | None
    """[D]"""
    eps: float
    """of the norms"""


def rotate_and_write(
    qkv: Tensor, rotation: Rotation, positions_T: Tensor, cells_T: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Norm and turn queries and keys; write keys and values to the cache.

    Args:
        qkv: [T, (H + 2 K) * D]: queries, keys, values.
        rotation: the layer's norms and the table of angles.
        positions_T: int64, each below L.
        cells_T: int64, each token's cell of the cache.
        keys: one layer's keys [N, B, K, D] with C = N * B cells, written.
        values: the same shape, written.

    Returns:
        The queries, [T, H, D].
    """
    kv_heads, size = keys.shape[-2:]
    heads = qkv.shape[1] // size
    assert qkv.is_contiguous() and keys.is_contiguous() and values.is_contiguous()
    assert rotation.cos_sin.shape[1] == size and heads * size == qkv.shape[1]
    q_THD = qkv.new_empty(len(qkv), heads - 2 * kv_heads, size)
    _rotate_kernel[(len(qkv), triton.cdiv(heads, HEADS_PER_PROGRAM))](
        qkv,
        rotation.cos_sin,
        rotation.query_norm,
        rotation.key_norm,
        positions_T,
        cells_T,
        q_THD,
        keys,
        values,
        rotation.eps,
        QUERY_HEADS=heads - 2 * kv_heads,
        KV_HEADS=kv_heads,
        HALF=size // 2,
        BLOCK_HALF=triton.next_power_of_2(size // 2),
        BLOCK_HEADS=HEADS_PER_PROGRAM,
        NORMS=rotation.query_norm is not None,
        num_warps=4,
        enable_fp_fusion=False,  # a product that is fused into its sum is not rounded, as transformers' is
    )
    return q_THD


def rotate_and_write_reference(
    qkv: Tensor, rotation: Rotation, positions_T: Tensor, cells_T: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """As `rotate_and_write`, in plain torch and in transformers' own steps."""
    kv_heads, size = keys.shape[-2:]
    heads_THD = qkv.view(len(qkv), -1, size)
    q_THD, k_TKD, v_TKD = heads_THD.split([heads_THD.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if rotation.query_norm is not None and rotation.key_norm is not None:
        q_THD = norm_reference(q_THD, rotation.query_norm, rotation.eps)
        k_TKD = norm_reference(k_TKD, rotation.key_norm, rotation.eps)
    cos, sin = rotation.cos_sin[positions_T].to(qkv.dtype)[:, None].chunk(2, dim=-1)
    keys.flatten(0, 1).index_copy_(0, cells_T, _turn(k_TKD, cos, sin))
    values.flatten(0, 1).index_copy_(0, cells_T, v_TKD)
    return _turn(q_THD, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * torch.cat((cos, cos), dim=-1) + torch.cat((-second, first), dim=-1) * torch.cat((sin, sin), dim=-1)


@triton.jit
def _rotate_kernel(
    QKV,
    COS_SIN,
    QUERY_NORM,
    KEY_NORM,
    POSITIONS,
    CELLS,
    OUT,
    KEYS,
    VALUES,
    eps,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    NORMS: tl.constexpr,
):
    """BLOCK_HEADS heads of one token a program, as two tiles [heads, half a head]."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    real = (pair < HALF) & (head < QUERY_HEADS + 2 * KV_HEADS)
    source = QKV + (token * (QUERY_HEADS + 2 * KV_HEADS) + head) * (2 * HALF) + pair
    first = tl.load(source, mask=real, other=0.0)
    second = tl.load(source + HALF, mask=real, other=0.0)

    is_query = head < QUERY_HEADS
    is_value = head >= QUERY_HEADS + KV_HEADS
    cell = tl.load(CELLS + token) * KV_HEADS
    value_at = VALUES + (cell + head - QUERY_HEADS - KV_HEADS) * (2 * HALF) + pair
    tl.store(value_at, first, mask=real & is_value)
    tl.store(value_at + HALF, second, mask=real & is_value)

    if NORMS:
        square = first.to(tl.float32) * first.to(tl.float32) + second.to(tl.float32) * second.to(tl.float32)
        scale = tl.rsqrt(tl.sum(square, 1) / (2 * HALF) + eps)[:, None]
        first = _norm_half(first, scale, _load_weight(QUERY_NORM, KEY_NORM, is_query, pair, HALF))
        second = _norm_half(second, scale, _load_weight(QUERY_NORM + HALF, KEY_NORM + HALF, is_query, pair, HALF))

    angle = COS_SIN + tl.load(POSITIONS + token) * (2 * HALF) + pair
    cos = tl.load(angle, mask=pair < HALF, other=0.0).to(OUT.dtype.element_ty)
    sin = tl.load(angle + HALF, mask=pair < HALF, other=0.0).to(OUT.dtype.element_ty)
    turned_first = (_product(first, cos) - _product(second, sin)).to(OUT.dtype.element_ty)
    turned_second = (_product(second, cos) + _product(first, sin)).to(OUT.dtype.element_ty)

    query_at = OUT + (token * QUERY_HEADS + head) * (2 * HALF) + pair
    tl.store(query_at, turned_first, mask=real & is_query)
    tl.store(query_at + HALF, turned_second, mask=real & is_query)
    is_key = (head >= QUERY_HEADS) & (head < QUERY_HEADS + KV_HEADS)
    key_at = KEYS + (cell + head - QUERY_HEADS) * (2 * HALF) + pair
    tl.store(key_at, turned_first, mask=real & is_key)
    tl.store(key_at + HALF, turned_second, mask=real & is_key)


@triton.jit
def _load_weight(QUERY_NORM, KEY_NORM, is_query, pair, HALF: tl.constexpr):
    query = tl.load(QUERY_NORM + pair, mask=pair < HALF, other=0.0)
    key = tl.load(KEY_NORM + pair, mask=pair < HALF, other=0.0)
    return tl.where(is_query, query, key)


@triton.jit
def _norm_half(x, scale, weight):
    """The normed part of a head, rounded before the weight as well as behind it."""
    normed = (x.to(tl.float32) * scale).to(x.dtype)
    return (normed.to(tl.float32) * weight.to(tl.float32)).to(x.dtype)


@triton.jit
def _product(x, factor):
    """float32, rounded as a product in the dtype of x is."""
    return (x.to(tl.float32) * factor.to(tl.float32)).to(x.dtype).to(tl.float32)

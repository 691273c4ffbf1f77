"""Attention of a decode step in one kernel: norm and rotary embedding of the new token, its cache write, the softmax.

A program owns a row's KV head, or one split of its context, so it can make the head's query, key and value itself from
what the projection left, write key and value to the cache, and attend over the older tokens, which lie in the cache.
The new token never is read back: it begins the running softmax of the last split. What does not depend on the
projection (positions, block tables, older keys and values) is fetched before the wait. Source of the split: flash
decoding (Dao et al., 2023).

Shape legend: B rows, H query heads, K KV heads, D head size, S splits, N blocks of the cache, C cells a block, M most
blocks of a row, L longest context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.chain import chained, early, wait
from lockstep_worker.kernels.decode.join import Parts, join_if_last

GROUP = tl.constexpr(16)
"""Query heads of a KV head, padded: the tensor cores' smallest operand."""


@dataclass(frozen=True, slots=True)
class Split:
    """How attention over a row's context is cut."""

    splits: int
    tokens: int
    """taken at once, a power of two of at least 16"""
    warps: int
    ahead: bool
    """whether the first tokens are fetched before the wait; costs registers, wins where one kernel fills no GPU"""
    buffers: int
    """how many `tokens` are in shared memory or on their way there at once"""


@dataclass(frozen=True, slots=True)
class Heads:
    """What a layer's attention is."""

    query_heads: int
    kv_heads: int
    head_dim: int
    scaling: float
    eps: float
    """of the query and key norms, where there are any"""
    window: int | None = None
    """a token sees itself and the `window - 1` before it"""


@triton.jit
def _load(
    keys,
    values,
    table,
    start,
    end,
    head,
    K: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    TOKENS: tl.constexpr,
    D_PADDED: tl.constexpr,
):
    """Keys and values [TOKENS, D] of older tokens."""
    token = start + tl.arange(0, TOKENS)
    d = tl.arange(0, D_PADDED)
    block = tl.load(table + token // C, mask=token < end, other=0).to(tl.int64)
    at = (((block * C + token % C) * K + head) * D)[:, None] + d[None, :]
    inside = (token < end)[:, None]
    if D != D_PADDED:
        inside &= (d < D)[None, :]
    return tl.load(keys + at, mask=inside, other=0.0), tl.load(values + at, mask=inside, other=0.0)


@triton.jit
def _fold(q, k, v, inside, most, total, acc, scale):
    """Some tokens into the running softmax, which is kept to base 2."""
    score = tl.where(inside[None, :], tl.dot(q, k.T, input_precision="ieee") * scale, -float("inf"))
    higher = tl.maximum(most, tl.max(score, 1))
    p = tl.exp2(score - higher[:, None])
    old = tl.exp2(most - higher)
    acc = acc * old[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return higher, total * old + tl.sum(p, 1), acc


@triton.jit
def _with_norm(cos, sin, norm, d, d_other, D: tl.constexpr, NORM: tl.constexpr):
    """The factors of dimension d and of `d_other`, with which it turns: rotary embedding and the norm's weight."""
    if NORM:
        cos *= tl.load(norm + d, mask=d < D, other=0.0).to(tl.float32)
        sin *= tl.load(norm + d_other, mask=d < D, other=0.0).to(tl.float32)
    return cos, sin


@triton.jit
def _new_token(
    projected,
    q_cos,
    q_sin,
    k_cos,
    k_sin,
    eps,
    head,
    d,
    d_other,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    NORM: tl.constexpr,
):
    """The new token's queries [GROUP, D_PADDED], key and value [D_PADDED] of one KV head, in float32."""
    group = tl.arange(0, GROUP)
    of_query = projected + (head * (H // K) + group)[:, None] * D
    real = (group < H // K)[:, None] & (d < D)[None, :]
    q = tl.load(of_query + d[None, :], mask=real, other=0.0).to(tl.float32)
    q_other = tl.load(of_query + d_other[None, :], mask=real, other=0.0).to(tl.float32)
    turned_q = q * q_cos[None, :] + q_other * q_sin[None, :]
    of_key = projected + (H + head) * D
    k = tl.load(of_key + d, mask=d < D, other=0.0).to(tl.float32)
    k_other = tl.load(of_key + d_other, mask=d < D, other=0.0).to(tl.float32)
    turned_k = k * k_cos + k_other * k_sin
    if NORM:
        turned_q *= tl.rsqrt(tl.sum(q * q, 1) / D + eps)[:, None]
        turned_k *= tl.rsqrt(tl.sum(k * k, 0) / D + eps)
    v = tl.load(of_key + K * D + d, mask=d < D, other=0.0).to(tl.float32)
    return turned_q, turned_k, v


@triton.jit(do_not_specialize=["table_stride"])
def attention_kernel(
    qkv,
    query_norm,
    key_norm,
    cos_sin,
    keys,
    values,
    tables,
    positions,
    out,
    attended,
    weights,
    arrived,
    scale,
    eps,
    table_stride,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    C: tl.constexpr,
    WINDOW: tl.constexpr,
    NORM: tl.constexpr,
    SPLITS: tl.constexpr,
    TOKENS: tl.constexpr,
    AHEAD: tl.constexpr,
    BUFFERS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: a row's KV head, one split of its context. See `attend`."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    early(PDL)
    position = tl.load(positions + row).to(tl.int32)  # also how many tokens are older
    table = tables + row.to(tl.int64) * table_stride
    oldest = 0
    if WINDOW > 0:
        oldest = tl.maximum(position - WINDOW + 1, 0)
    share = tl.cdiv(tl.cdiv(position - oldest, SPLITS), 16) * 16
    start = oldest + split * share
    end = tl.minimum(position, start + share)
    if AHEAD:
        k_ahead, v_ahead = _load(keys, values, table, start, end, head, K, D, C, TOKENS, D_PADDED)
    d = tl.arange(0, D_PADDED)
    first_half = d < D // 2
    d_other = tl.where(first_half, d + D // 2, d - D // 2)
    angle = position * D + tl.where(first_half, d, d_other)
    cos = tl.load(cos_sin + angle, mask=d < D, other=0.0)
    sin = tl.load(cos_sin + angle + D // 2, mask=d < D, other=0.0) * tl.where(first_half, -1.0, 1.0)
    q_cos, q_sin = _with_norm(cos, sin, query_norm, d, d_other, D, NORM)
    k_cos, k_sin = _with_norm(cos, sin, key_norm, d, d_other, D, NORM)
    block = tl.load(table + position // C).to(tl.int64)
    cell = ((block * C + position % C) * K + head) * D
    wait(PDL)

    projected = qkv + row.to(tl.int64) * ((H + 2 * K) * D)
    q, k, v = _new_token(projected, q_cos, q_sin, k_cos, k_sin, eps, head, d, d_other, H, K, D, NORM)
    q, k, v = q.to(keys.dtype.element_ty), k.to(keys.dtype.element_ty), v.to(values.dtype.element_ty)
    group = tl.arange(0, GROUP)
    newest = split == SPLITS - 1  # this split has the new token
    tl.store(keys + cell + d, k, mask=(d < D) & newest)
    tl.store(values + cell + d, v, mask=(d < D) & newest)
    own = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale
    most = tl.where(newest, own, -1e30)
    total = tl.zeros([GROUP], tl.float32) + tl.where(newest, 1.0, 0.0)
    acc = tl.zeros([GROUP, D_PADDED], tl.float32) + tl.where(newest, v.to(tl.float32), 0.0)[None, :]

    token = tl.arange(0, TOKENS)
    if AHEAD:
        most, total, acc = _fold(q, k_ahead, v_ahead, start + token < end, most, total, acc, scale)
        start += TOKENS
    for i in tl.range(start, end, TOKENS, num_stages=BUFFERS):
        k_i, v_i = _load(keys, values, table, i, end, head, K, D, C, TOKENS, D_PADDED)
        most, total, acc = _fold(q, k_i, v_i, i + token < end, most, total, acc, scale)

    at = (row.to(tl.int64) * SPLITS + split) * H + head * (H // K) + group
    total = tl.maximum(total, 1e-30)  # a split may have no token
    real = (group < H // K)[:, None] & (d < D)[None, :]
    tl.store(attended + at[:, None] * D + d[None, :], (acc / total[:, None]).to(attended.dtype.element_ty), mask=real)
    if weights is not None:
        tl.store(weights + at, most + tl.log2(total), mask=group < H // K)
    if arrived is not None:
        join_if_last(attended, weights, arrived, out, row.to(tl.int64), head, H, K, D, D_PADDED, GROUP, SPLITS)


def attend(
    qkv_MX: Tensor,
    query_norm_D: Tensor | None,
    key_norm_D: Tensor | None,
    cos_sin_LD: Tensor,
    keys_NCKD: Tensor,
    values_NCKD: Tensor,
    tables_BM: Tensor,
    positions_B: Tensor,
    out_BHD: Tensor | None,
    parts: Parts | None,
    heads: Heads,
    split: Split,
    pdl: int = 0,
) -> None:
    """Attention of each row's new token, which this writes to the cache.

    Args:
        qkv_MX: queries, keys and values as projected, before norm and rotary embedding, [M >= B, (H + 2 K) * D].
        query_norm_D: the weight of the RMS norm of each query head, or None.
        key_norm_D: the same of each key head; there when `query_norm_D` is.
        cos_sin_LD: float32, as in `DenseWeights`.
        keys_NCKD: the layer's cache, contiguous.
        values_NCKD: the same.
        tables_BM: int32, the blocks of each row; any stride between rows.
        positions_B: int64, the new token's index in its sequence, whose older tokens are in the cache.
        out_BHD: written; None leaves the parts, for who joins them.
        parts: of each split; None where there is one, which is the result itself.
        heads: what the layer's attention is; at most 16 query heads share a KV head.
        split: how it is cut.
        pdl: see `chain`.
    """
    rows, attended = positions_B.shape[0], out_BHD if parts is None else parts.attended_BSHD
    assert heads.query_heads <= GROUP.value * heads.kv_heads and (split.splits == 1 or parts is not None)
    assert keys_NCKD.is_contiguous() and values_NCKD.is_contiguous() and attended is not None
    attention_kernel[(rows, heads.kv_heads, split.splits)](
        qkv_MX,
        cos_sin_LD if query_norm_D is None else query_norm_D,
        cos_sin_LD if key_norm_D is None else key_norm_D,
        cos_sin_LD,
        keys_NCKD,
        values_NCKD,
        tables_BM,
        positions_B,
        out_BHD,
        attended,
        None if parts is None else parts.weights_BSH,
        None if parts is None or out_BHD is None else parts.arrived_BK,
        heads.scaling * math.log2(math.e),
        heads.eps,
        tables_BM.stride(0),
        H=heads.query_heads,
        K=heads.kv_heads,
        D=heads.head_dim,
        D_PADDED=triton.next_power_of_2(heads.head_dim),
        C=keys_NCKD.shape[1],
        WINDOW=heads.window or 0,
        NORM=query_norm_D is not None,
        SPLITS=split.splits,
        TOKENS=split.tokens,
        AHEAD=split.ahead,
        BUFFERS=split.buffers,
        num_warps=split.warps,
        **chained(pdl),
    )

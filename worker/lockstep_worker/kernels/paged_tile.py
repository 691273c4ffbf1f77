"""What paged attention does with one tile of keys, and how a program finds its tokens: parts of other kernels.

Shape legend: ROWS query rows of a program, TILE keys of a tile, D head size, padded to a power of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def find_queries(ASSIGNMENTS, QUERY_START, CONTEXTS, entry):
    """Return an assignment's sequence, first packed token, that token's position, and the sequence's tokens from there.

    Without assignments sequence `entry` brings the packed token `entry` and no other.
    """
    if ASSIGNMENTS is None:
        sequence, token, queries = entry, entry, 1
        position = tl.load(CONTEXTS + sequence) - 1
    else:
        sequence = tl.load(ASSIGNMENTS + 2 * entry)
        token = tl.load(QUERY_START + sequence) + tl.load(ASSIGNMENTS + 2 * entry + 1)
        queries = tl.load(QUERY_START + sequence + 1) - token
        position = tl.load(CONTEXTS + sequence) - queries
    return sequence, token, position, queries


@triton.jit
def take_tile(
    q, peak, total, sums, KEYS, VALUES, table, start, end, seen, head, scale,
    K: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, IS_MASKED: tl.constexpr, IS_CAUSAL: tl.constexpr,
):  # fmt: skip
    """Take the keys `start` to `start + TILE`, none from `end` on, into a running softmax.

    Args as in `paged_attention_kernel`, and `seen` [ROWS], the last position that each row sees.

    Returns:
        The largest score [ROWS], the sum of weights [ROWS] and the weighted values [ROWS, PADDED_D], with this tile.
    """
    position = start + tl.arange(0, TILE)
    d = tl.arange(0, PADDED_D)
    is_key = position < end
    page = tl.load(table + position // PAGE, mask=is_key, other=0).to(tl.int64)
    cell = (page * PAGE + position % PAGE) * (K * D) + head * D
    k_mask, v_mask = is_key[None, :], is_key[:, None]
    if D < PADDED_D:
        k_mask, v_mask = k_mask & (d < D)[:, None], v_mask & (d < D)[None, :]
    k = tl.load(KEYS + cell[None, :] + d[:, None], mask=k_mask, other=0.0)
    score = tl.dot(q, k, input_precision="ieee") * scale
    if SOFTCAP > 0:  # tanh(x) is 1 - 2 / (1 + exp(2x)); the score is x * SOFTCAP * log2(e)
        score = (SOFTCAP * LOG2_E) * (1.0 - 2.0 / (1.0 + tl.exp2(score * (2.0 / SOFTCAP))))
    if IS_MASKED:
        is_seen = is_key[None, :]
        if IS_CAUSAL:
            is_seen &= position[None, :] <= seen[:, None]
            if WINDOW > 0:
                is_seen &= position[None, :] > seen[:, None] - WINDOW
        score = tl.where(is_seen, score, -float("inf"))
    higher = tl.maximum(peak, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    shrink = tl.exp2(peak - higher)
    v = tl.load(VALUES + cell[:, None] + d[None, :], mask=v_mask, other=0.0)
    sums = sums * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return higher, total * shrink + tl.sum(weight, 1), sums


@triton.jit
def take_sink(SINKS, heads, is_row, peak, total, sums):
    """Let each row's sink join its softmax, once; nothing changes where `SINKS` is None."""
    if SINKS is not None:
        sink = tl.load(SINKS + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        higher = tl.maximum(peak, sink)
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.exp2(sink - higher)
        sums = sums * shrink[:, None]
        peak = higher
    return peak, total, sums

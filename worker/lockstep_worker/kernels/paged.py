"""Attention over the paged cache for GPUs, in one kernel: a decode's single token, a few drafts, a prompt's chunk.

A program has one KV head and a few query tokens of one sequence: with the G query heads of that KV head they are the
rows of a tile, so that keys and values are read once for all of them. It walks over the keys that these tokens see,
a tile at a time, and keeps the softmax's running sums in float32, to the base 2. Page numbers are loaded as a vector,
one a key, so that tiles need not divide pages and the loads of the next tile are under way during this one.

Where programs are too few for the GPU, each one's keys are split between several, whose sums `paged_join` merges in a
fixed order. How many depends on the batch's layout only, never on a context's length: a captured graph stays right.

With a fixed tiling a row's numbers do not depend on the rows that share its program: tiles of keys begin at multiples
of their length, all go through the same masked code, and one of which a row sees nothing leaves the row's sums as they
are, since it multiplies them by one and adds zero.

Source of the running softmax: FlashAttention; of the split: Flash-Decoding; of the rows of a group: FlashInfer.

Shape legend: T packed tokens, S sequences, H query heads, K KV heads, G query heads a KV head, D head size, N blocks of
the cache, B tokens a block, M most blocks a sequence has, P programs' assignments.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.paged_arguments import PagedSequences, Partials, Scoring
from lockstep_worker.kernels.paged_join import join_partials
from lockstep_worker.kernels.paged_tile import find_queries, take_sink, take_tile
from lockstep_worker.kernels.paged_tiling import Tiling

_FLOOR = tl.constexpr(-1.0e38)
"""The largest score before there is one: finite, since infinity minus infinity would be NaN."""


@triton.jit(do_not_specialize=["splits", "table_stride"])
def paged_attention_kernel(
    Q,
    KEYS,
    VALUES,
    OUT,
    SUMS,
    MARKS,
    TABLES,
    CONTEXTS,
    QUERY_START,
    ASSIGNMENTS,
    SINKS,
    scale,
    splits,
    table_stride,
    q_token,
    q_head,
    q_dim,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    PADDED_D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    IS_FIXED: tl.constexpr,
):
    """Attend BLOCK_Q tokens x G heads over one split of their context; the grid is [P, K, splits].

    `SUMS` is None where contexts are not split: then it is `OUT` that is written. `scale` has log2(e) in it.
    """
    entry, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, token, position, queries = find_queries(ASSIGNMENTS, QUERY_START, CONTEXTS, entry)
    row, d = tl.arange(0, ROWS), tl.arange(0, PADDED_D)
    heads = head * G + row % G
    tokens = (token + row // G).to(tl.int64)
    is_row = (row < BLOCK_Q * G) & (row // G < queries)
    is_cell = is_row[:, None] & (d < D)[None, :]
    q_at = tokens[:, None] * q_token + heads[:, None] * q_head + d[None, :] * q_dim
    q = tl.load(Q + q_at, mask=is_cell, other=0.0)

    begin = 0
    end = position + tl.minimum(BLOCK_Q, queries)
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0)
        if IS_FIXED:  # tiles that lie where they do for any other rows
            begin = begin // TILE * TILE
    share = tl.cdiv(tl.cdiv(end - begin, splits), TILE) * TILE
    begin += split * share
    end = tl.minimum(end, begin + share)

    peak = tl.full([ROWS], _FLOOR, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, PADDED_D], tl.float32)
    table = TABLES + sequence.to(tl.int64) * table_stride
    seen = position + row // G  # [ROWS]: the last position that a row sees
    masked_from = begin
    if BLOCK_Q > 1 and WINDOW == 0 and not IS_FIXED:  # up to the first token's own key all tokens see all keys
        masked_from += tl.maximum(tl.minimum(position + 1, end) - begin, 0) // TILE * TILE
        for start in range(begin, masked_from, TILE):
            peak, total, sums = take_tile(
                q, peak, total, sums, KEYS, VALUES, table, start, end, seen, head, scale,
                K, D, PADDED_D, PAGE, TILE, 0, SOFTCAP, False, False,
            )  # fmt: skip
    for start in range(masked_from, end, TILE):
        peak, total, sums = take_tile(
            q, peak, total, sums, KEYS, VALUES, table, start, end, seen, head, scale,
            K, D, PADDED_D, PAGE, TILE, WINDOW, SOFTCAP, True, BLOCK_Q > 1 or IS_FIXED,
        )  # fmt: skip

    if SUMS is None:
        peak, total, sums = take_sink(SINKS, heads, is_row, peak, total, sums)
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        out_at = (tokens[:, None] * (K * G) + heads[:, None]) * D + d[None, :]
        tl.store(OUT + out_at, result.to(OUT.dtype.element_ty), mask=is_cell)
    else:
        slot = ((entry * K + head) * splits + split) * ROWS + row
        tl.store(SUMS + slot[:, None] * D + d[None, :], sums, mask=is_cell)
        tl.store(MARKS + slot * 2, peak, mask=is_row)
        tl.store(MARKS + slot * 2 + 1, total, mask=is_row)


def paged_attention(
    q_THD: Tensor,
    keys_NBKD: Tensor,
    values_NBKD: Tensor,
    out_THD: Tensor,
    sequences: PagedSequences,
    scoring: Scoring,
    tiling: Tiling,
    partials: Partials,
) -> None:
    """Attend over the paged cache, which has this run's own keys and values already.

    A row that sees no key, as one of context 0 beyond a captured batch's real rows, becomes zeros.

    Args:
        q_THD: queries; any strides.
        keys_NBKD: one layer's keys, contiguous.
        values_NBKD: the same of its values.
        out_THD: contiguous; only the tokens that some assignment covers are written.
        sequences: which tokens attend over which blocks.
        scoring: the layer's own options.
        tiling: as `paged_tiling` chooses it for this batch; an assignment has `tiling.queries` tokens.
        partials: written where the tiling splits contexts, with `tiling.partial_rows` rows at least.
    """
    kv_heads, head_dim = keys_NBKD.shape[2:]
    group = q_THD.shape[1] // kv_heads
    assert keys_NBKD.is_contiguous() and values_NBKD.is_contiguous() and out_THD.is_contiguous()
    assert tiling.rows >= tiling.queries * group
    entries, splits = sequences.num_assignments, tiling.splits
    is_split = splits > 1
    assert not is_split or len(partials.marks) >= tiling.partial_rows(entries, kv_heads)
    paged_attention_kernel[(entries, kv_heads, splits)](
        q_THD,
        keys_NBKD,
        values_NBKD,
        out_THD,
        partials.sums if is_split else None,
        partials.marks if is_split else None,
        sequences.block_tables,
        sequences.context_lens,
        sequences.query_start,
        sequences.assignments,
        scoring.sinks,
        scoring.scaling * math.log2(math.e),
        splits,
        sequences.block_tables.stride(0),
        *q_THD.stride(),
        K=kv_heads,
        G=group,
        D=head_dim,
        PADDED_D=triton.next_power_of_2(head_dim),
        PAGE=keys_NBKD.shape[1],
        BLOCK_Q=tiling.queries,
        ROWS=tiling.rows,
        TILE=tiling.keys,
        WINDOW=scoring.sliding_window or 0,
        SOFTCAP=scoring.softcap or 0.0,
        IS_FIXED=tiling.is_fixed,
        num_warps=tiling.warps,
        num_stages=tiling.depth,
    )
    if is_split:
        join_partials(partials.sums, partials.marks, out_THD, sequences, scoring.sinks, kv_heads, tiling)

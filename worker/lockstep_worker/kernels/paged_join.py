"""Merges what the splits of one context found into the attention's output, in the order of the splits.

The order is fixed, so that a token never depends on which program was done first.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.paged_arguments import PagedSequences
from lockstep_worker.kernels.paged_tile import LOG2_E, find_queries
from lockstep_worker.kernels.paged_tiling import MOST_SPLITS, Tiling


@triton.jit(do_not_specialize=["splits"])
def paged_join_kernel(
    SUMS,
    MARKS,
    OUT,
    CONTEXTS,
    QUERY_START,
    ASSIGNMENTS,
    SINKS,
    splits,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    PADDED_D: tl.constexpr,
    ROWS: tl.constexpr,
    MOST: tl.constexpr,
):
    """Merge one row of a tile; the grid is [assignments, K, the rows of a tile that are used]."""
    entry, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    _, token, _, queries = find_queries(ASSIGNMENTS, QUERY_START, CONTEXTS, entry)
    if row // G < queries:
        split, d = tl.arange(0, MOST), tl.arange(0, PADDED_D)
        is_split = split < splits
        slot = ((entry * K + head) * splits + split) * ROWS + row
        peaks = tl.load(MARKS + slot * 2, mask=is_split, other=-float("inf"))
        totals = tl.load(MARKS + slot * 2 + 1, mask=is_split, other=0.0)
        is_sum = is_split[:, None] & (d < D)[None, :]
        sums = tl.load(SUMS + slot[:, None] * D + d[None, :], mask=is_sum, other=0.0)
        query_head = head * G + row % G
        peak = tl.max(peaks, 0)
        if SINKS is not None:
            sink = tl.load(SINKS + query_head).to(tl.float32) * LOG2_E
            peak = tl.maximum(peak, sink)
        weight = tl.exp2(peaks - peak)
        total = tl.sum(totals * weight, 0)
        if SINKS is not None:
            total += tl.exp2(sink - peak)
        result = tl.sum(sums * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
        out_at = ((token + row // G).to(tl.int64) * (K * G) + query_head) * D + d
        tl.store(OUT + out_at, result.to(OUT.dtype.element_ty), mask=d < D)


def join_partials(
    sums: Tensor,
    marks: Tensor,
    out_THD: Tensor,
    sequences: PagedSequences,
    sinks: Tensor | None,
    kv_heads: int,
    tiling: Tiling,
) -> None:
    """Merge the partial results of `paged.paged_attention`; see there for what the arguments are."""
    head_dim = out_THD.shape[2]
    group = out_THD.shape[1] // kv_heads
    paged_join_kernel[(sequences.num_assignments, kv_heads, tiling.queries * group)](
        sums,
        marks,
        out_THD,
        sequences.context_lens,
        sequences.query_start,
        sequences.assignments,
        sinks,
        tiling.splits,
        K=kv_heads,
        G=group,
        D=head_dim,
        PADDED_D=triton.next_power_of_2(head_dim),
        ROWS=tiling.rows,
        MOST=MOST_SPLITS,
        num_warps=2,
    )

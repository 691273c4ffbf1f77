"""Close a step in one kernel, one program a row: pick the token, lengthen the row, say whether it ended, tell the host.

Of a row that had ended before nothing is changed, so several places of a batch may name the same ended row.

Shapes: n rows, S slots, E ids that may end a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.draw import Candidates, best_of_tiles, warps_of_tiles


@dataclass(frozen=True, slots=True)
class StepTables:
    """What closing a step reads and writes of each slot. The integers may be views with one stride."""

    finished: Tensor
    """uint8 [S], contiguous: the code of a row that ended, else 0; written"""
    last_token: Tensor
    """int64 [S], as all that follow; written"""
    length: Tensor
    """the newest token included; written"""
    limit: Tensor
    """the length that ends a row"""
    end_ids: Tensor
    """[S, E], E a power of two; no id where negative"""
    stop_token_ids: Tensor
    """like `end_ids`"""


@dataclass(frozen=True, slots=True)
class StepCodes:
    """What is written for the reasons to end, in the order in which they win."""

    end_id: int
    length: int
    stop_words: int


@dataclass(frozen=True, slots=True)
class Closed:
    """What a step brought; for a row that had ended before, its old code and a token that means nothing."""

    tokens: Tensor
    """int64 [n]"""
    codes: Tensor
    """uint8 [n]"""
    pairs: Tensor
    """int32 [n, 2]: both once more, for one copy to the host"""


@triton.jit(do_not_specialize_on_alignment=["rows"])  # a view of a batch's buffers, which lies anywhere
def _close_step_kernel(
    highs,
    lows,
    ids,
    tiles,
    rows,
    finished,
    last_token,
    length,
    limit,
    end_ids,
    stop_token_ids,
    stride,
    tokens,
    codes,
    pairs,
    WIDTH: tl.constexpr,
    IDS: tl.constexpr,
    END_ID: tl.constexpr,
    LENGTH: tl.constexpr,
    STOP_WORDS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(rows + row)
    at, each = slot * stride, tl.arange(0, IDS)
    token = best_of_tiles(highs, lows, ids, row, tiles, WIDTH).to(tl.int64)
    before = tl.load(finished + slot).to(tl.int32)
    alive = before == 0
    grown = tl.load(length + at) + alive.to(tl.int64)
    is_stop = tl.max((tl.load(stop_token_ids + at + each) == token).to(tl.int32), 0) > 0
    is_end = tl.max((tl.load(end_ids + at + each) == token).to(tl.int32), 0) > 0
    code = tl.where(is_stop, STOP_WORDS, 0)
    code = tl.where(grown >= tl.load(limit + at), LENGTH, code)
    code = tl.where(is_end, END_ID, code)
    code = tl.where(alive, code, before)
    tl.store(length + at, grown)
    tl.store(last_token + at, tl.where(alive, token, tl.load(last_token + at)))
    tl.store(finished + slot, code.to(tl.uint8))
    tl.store(tokens + row, token)
    tl.store(codes + row, code.to(tl.uint8))
    tl.store(pairs + 2 * row, token.to(tl.int32))
    tl.store(pairs + 2 * row + 1, code)


def close_step(candidates: Candidates, rows: Tensor, tables: StepTables, codes: StepCodes) -> Closed:
    """Pick each row's token and close its step.

    Args:
        candidates: of the n rows.
        rows: int64 [n], their slots, each once; only a slot that had ended may stand there several times.
        tables: written where they say so.
        codes: what is written for each reason to end.
    """
    integers = (tables.last_token, tables.length, tables.limit, tables.end_ids, tables.stop_token_ids)
    stride, num_ids = tables.length.stride(0), tables.end_ids.shape[1]
    assert all(table.stride(0) == stride for table in integers) and tables.finished.is_contiguous()
    assert num_ids == triton.next_power_of_2(num_ids) == tables.stop_token_ids.shape[1]
    num_rows, tiles = candidates.ids_nB.shape
    width = triton.next_power_of_2(tiles)
    closed = Closed(
        torch.empty(num_rows, dtype=torch.int64, device=rows.device),
        torch.empty(num_rows, dtype=torch.uint8, device=rows.device),
        torch.empty((num_rows, 2), dtype=torch.int32, device=rows.device),
    )
    _close_step_kernel[(num_rows,)](
        candidates.highs_nB,
        candidates.lows_nB,
        candidates.ids_nB,
        tiles,
        rows,
        tables.finished,
        *integers,
        stride,
        closed.tokens,
        closed.codes,
        closed.pairs,
        WIDTH=width,
        IDS=num_ids,
        END_ID=codes.end_id,
        LENGTH=codes.length,
        STOP_WORDS=codes.stop_words,
        num_warps=warps_of_tiles(width),
    )
    return closed


def close_step_reference(tokens: Tensor, rows: Tensor, tables: StepTables, codes: StepCodes) -> Closed:
    """Close the step of rows whose tokens, int64 [n], are known."""
    before = tables.finished[rows]
    alive = before == 0
    length = tables.length[rows] + alive.long()
    found = torch.zeros_like(before)
    found.masked_fill_((tables.stop_token_ids[rows] == tokens.unsqueeze(1)).any(dim=1), codes.stop_words)
    found.masked_fill_(length >= tables.limit[rows], codes.length)
    found.masked_fill_((tables.end_ids[rows] == tokens.unsqueeze(1)).any(dim=1), codes.end_id)
    found = torch.where(alive, found, before)
    tables.length[rows] = length
    tables.last_token[rows] = torch.where(alive, tokens, tables.last_token[rows])
    tables.finished[rows] = found
    return Closed(tokens, found, torch.stack((tokens, found), dim=1).int())

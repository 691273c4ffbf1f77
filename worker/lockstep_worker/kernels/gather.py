"""The start of a captured decode: from rows of per-slot columns to the tokens, positions and blocks that it computes.

One program a row, in place of a dozen small ones that each cost a decode of few rows as much as a projection does.

Shape legend: R rows, S slots, M most blocks of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


@dataclass(frozen=True, slots=True)
class Gathered:
    """The newest token of each row; memory of the largest run, which each run fills anew."""

    tokens: Tensor
    """int64 [R]"""
    positions: Tensor
    """int64 [R]: of the newest token, whose key and value are not computed yet"""
    cells: Tensor
    """int64 [R]: where they go"""
    context_lens: Tensor
    """int32 [R]"""
    block_tables: Tensor
    """int32 [R, M]: each row's blocks up to its newest token; what stands behind them is left as it was"""

    @classmethod
    def allocate(cls, rows: int, blocks: int, device: torch.device) -> Gathered:
        """Make room for so many rows of so many blocks; zero is a valid block."""
        tokens, positions, cells = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3))
        lens = torch.ones(rows, dtype=torch.int32, device=device)
        return cls(tokens, positions, cells, lens, torch.zeros((rows, blocks), dtype=torch.int32, device=device))

    def first(self, rows: int) -> Gathered:
        """Return the first rows, which share this one's memory."""
        parts = (self.tokens, self.positions, self.cells, self.context_lens, self.block_tables)
        return Gathered(*(part[:rows] for part in parts))


@triton.jit
def _gather(
    rows,
    last_token,
    length,
    slot_tables,
    tokens,
    positions,
    cells,
    context_lens,
    block_tables,
    column_stride,
    slot_stride,
    row_stride,
    block_size,
    TILE: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(rows + row)
    position = tl.load(length + slot * column_stride) - 1
    tl.store(tokens + row, tl.load(last_token + slot * column_stride))
    tl.store(positions + row, position)
    tl.store(context_lens + row, (position + 1).to(tl.int32))
    newest = tl.load(slot_tables + slot * slot_stride + position // block_size).to(tl.int64)
    tl.store(cells + row, newest * block_size + position % block_size)
    count = position // block_size + 1
    for start in range(0, count, TILE):
        entry = start + tl.arange(0, TILE)
        blocks = tl.load(slot_tables + slot * slot_stride + entry, mask=entry < count, other=0)
        tl.store(block_tables + row * row_stride + entry, blocks, mask=entry < count)


def gather(
    rows: Tensor, last_token: Tensor, length: Tensor, slot_tables: Tensor, block_size: int, out: Gathered
) -> None:
    """Gather the newest token of each row.

    Args:
        rows: int64 [R], slots.
        last_token: int64 [S], any stride.
        length: int64 [S], of the same stride; each at least 1.
        slot_tables: int32 [S, M].
        block_size: tokens of a block.
        out: of R rows.
    """
    assert last_token.stride() == length.stride()
    _gather[(rows.shape[0],)](
        rows,
        last_token,
        length,
        slot_tables,
        out.tokens,
        out.positions,
        out.cells,
        out.context_lens,
        out.block_tables,
        length.stride(0),
        slot_tables.stride(0),
        out.block_tables.stride(0),
        block_size,
        TILE=_TILE,
        num_warps=4,
    )


def gather_reference(
    rows: Tensor, last_token: Tensor, length: Tensor, slot_tables: Tensor, block_size: int, out: Gathered
) -> None:
    """Do the same in torch."""
    positions = length[rows] - 1
    tables = slot_tables[rows]
    newest = tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1)
    out.tokens.copy_(last_token[rows])
    out.positions.copy_(positions)
    out.cells.copy_(newest.long() * block_size + positions % block_size)
    out.context_lens.copy_(positions + 1)
    out.block_tables.copy_(tables)

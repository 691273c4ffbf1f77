"""The end of a decode step: of each row the best of its tiles' best.

Shape legend: B rows, T tiles of a head's columns.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.chain import chained, early, wait


@triton.jit
def choose_kernel(values, ids, tokens, T: tl.constexpr, T_PADDED: tl.constexpr, PDL: tl.constexpr):
    """One program a row: see `choose`."""
    row = tl.program_id(0)
    tile = tl.arange(0, T_PADDED)
    early(PDL)
    wait(PDL)
    value = tl.load(values + row * T + tile, mask=tile < T, other=-float("inf"))
    column = tl.load(ids + row * T + tile, mask=tile < T, other=2147483647)
    lowest = tl.min(tl.where(value == tl.max(value, 0), column, 2147483647), 0)
    tl.store(tokens + row, lowest.to(tl.int64))


def choose(values_BT: Tensor, ids_BT: Tensor, tokens_B: Tensor, pdl: int = 0) -> None:
    """The column of each row's highest value, of equal values the lowest.

    Args:
        values_BT: float32, no NaN.
        ids_BT: int32, each value's column.
        tokens_B: int64, written.
        pdl: see `chain`.
    """
    rows, tiles = values_BT.shape
    padded = triton.next_power_of_2(tiles)
    choose_kernel[(rows,)](
        values_BT, ids_BT, tokens_B, T=tiles, T_PADDED=padded, num_warps=4 if padded < 4096 else 16, **chained(pdl)
    )


def choose_reference(values_BT: Tensor, ids_BT: Tensor) -> Tensor:
    """What `choose` computes."""
    highest = values_BT == values_BT.max(1, keepdim=True).values
    return ids_BT.where(highest, ids_BT.new_tensor(2**31 - 1)).min(1).values.long()

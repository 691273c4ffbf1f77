"""The output projection of a decode step for a single row, see `vector`: it joins attention's splits on the way.

Shape legend: E hidden size, H query heads, D head size, K = H * D, S splits of attention.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.chain import chained, early, wait
from lockstep_worker.kernels.decode.join import join_splits
from lockstep_worker.kernels.decode.vector import Vector, weight_rows


@triton.jit
def out_kernel(
    w,
    parts,
    weights,
    residual,
    N: tl.constexpr,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: ROWS of the residual, see `out`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.arange(0, H_PADDED)
    d = tl.arange(0, D_PADDED)
    early(PDL)
    if H == H_PADDED and D == D_PADDED:
        tile = weight_rows(w, rows, N, H * D, H * D, N % ROWS == 0)
    else:
        column = tl.arange(0, H_PADDED * D_PADDED)
        inside = (column // D_PADDED < H) & (column % D_PADDED < D)
        at = rows.to(tl.int64)[:, None] * (H * D) + (column // D_PADDED * D + column % D_PADDED)[None, :]
        tile = tl.load(w + at, mask=(rows < N)[:, None] & inside[None, :], other=0.0)
    wait(PDL)
    joined = join_splits(parts, weights, head, head < H, d, H, D, SPLITS, "")
    x = tl.reshape(joined, [H_PADDED * D_PADDED])
    y = tl.sum(tile.to(tl.float32) * x[None, :], 1)
    tl.store(residual + rows, tl.load(residual + rows, mask=rows < N, other=0.0) + y, mask=rows < N)


def out(w_EK: Tensor, parts_SHD: Tensor, weights_SH: Tensor, residual_E: Tensor, cut: Vector, pdl: int = 0) -> None:
    """Join attention's splits and add their projection to the residual.

    Args:
        w_EK: K is H * D.
        parts_SHD: of each split its attention.
        weights_SH: float32, of each split the logarithm to base 2 of its softmax's sum.
        residual_E: float32, in place.
        cut: how it is cut.
        pdl: see `chain`.
    """
    splits, heads, dim = parts_SHD.shape
    size = w_EK.shape[0]
    out_kernel[(triton.cdiv(size, cut.rows),)](
        w_EK,
        parts_SHD,
        weights_SH,
        residual_E,
        N=size,
        H=heads,
        H_PADDED=triton.next_power_of_2(heads),
        D=dim,
        D_PADDED=triton.next_power_of_2(dim),
        SPLITS=splits,
        ROWS=cut.rows,
        num_warps=cut.warps,
        **chained(pdl),
    )


def out_reference(w_EK: Tensor, parts_SHD: Tensor, weights_SH: Tensor, residual_E: Tensor) -> Tensor:
    """The residual that `out` leaves."""
    share_SH = torch.softmax(weights_SH * torch.log(torch.tensor(2.0)), 0)
    joined_HD = (share_SH[:, :, None] * parts_SHD.float()).sum(0)
    return residual_E + w_EK.float() @ joined_HD.flatten()

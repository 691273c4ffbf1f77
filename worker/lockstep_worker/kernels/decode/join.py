"""Joins the splits of a decode step's attention, for many rows; for one row the output projection does it itself.

Shape legend: B rows, M rows that scratch has, S splits, H query heads, D head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.chain import chained, early, wait


@triton.jit
def join_kernel(
    parts,
    weights,
    out,
    H: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: a row's query head, see `join`."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS_PADDED)
    d = tl.arange(0, D_PADDED)
    early(PDL)
    wait(PDL)
    at = (row * SPLITS + split) * H + head
    weight = tl.load(weights + at, mask=split < SPLITS, other=-float("inf"))
    share = tl.exp2(weight - tl.max(weight, 0))
    share = share / tl.sum(share, 0)
    part = tl.load(parts + at[:, None] * D + d[None, :], mask=(split < SPLITS)[:, None] & (d < D)[None, :], other=0.0)
    joined = tl.sum(part.to(tl.float32) * share[:, None], 0)
    tl.store(out + (row * H + head) * D + d, joined.to(out.dtype.element_ty), mask=d < D)


def join(parts_BSHD: Tensor, weights_BSH: Tensor, out_MHD: Tensor, pdl: int = 0) -> None:
    """Each row's attention out of its splits'.

    Args:
        parts_BSHD: of each split its attention.
        weights_BSH: float32, of each split the logarithm to base 2 of its softmax's sum.
        out_MHD: its first B rows are written.
        pdl: see `chain`.
    """
    rows, splits, heads, dim = parts_BSHD.shape
    join_kernel[(rows, heads)](
        parts_BSHD,
        weights_BSH,
        out_MHD,
        H=heads,
        D=dim,
        D_PADDED=triton.next_power_of_2(dim),
        SPLITS=splits,
        SPLITS_PADDED=triton.next_power_of_2(splits),
        num_warps=1,
        **chained(pdl),
    )


def join_reference(parts_BSHD: Tensor, weights_BSH: Tensor) -> Tensor:
    """What `join` computes."""
    share_BSH = torch.softmax(weights_BSH * torch.log(torch.tensor(2.0)), 1)
    return (share_BSH[..., None] * parts_BSHD.float()).sum(1).to(parts_BSHD.dtype)

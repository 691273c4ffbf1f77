"""Joins the splits of a decode step's attention: the program of a row's KV head that comes last does it.

That saves the kernel that would only join. Which program comes last is chance, but the splits are read from memory and
added in their order, so the bits are not. For one row the output projection joins instead, see `out`.

Shape legend: B rows, S splits, H query heads, K KV heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Parts:
    """What the splits of a step's attention leave; scratch."""

    attended_BSHD: Tensor
    """of each split its attention"""
    weights_BSH: Tensor
    """float32, of each split the logarithm to base 2 of its softmax's sum"""
    arrived_BK: Tensor
    """int32, how many splits are over; zero before a step and after it"""


@triton.jit
def join_if_last(
    attended,
    weights,
    arrived,
    out,
    row,
    head,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Once this program has stored its split: join all of the row's KV head, if all are there."""
    tl.debug_barrier()  # all threads have stored theirs before one of them says so
    if tl.atomic_add(arrived + row * K + head, 1, sem="acq_rel") == SPLITS - 1:
        group, d = tl.arange(0, GROUP), tl.arange(0, D_PADDED)
        is_head = group < H // K
        real = is_head[:, None] & (d < D)[None, :]
        most = tl.full([GROUP], -1e30, tl.float32)
        total = tl.zeros([GROUP], tl.float32)
        acc = tl.zeros([GROUP, D_PADDED], tl.float32)
        for split in tl.static_range(SPLITS):
            at = (row * SPLITS + split) * H + head * (H // K) + group
            # Past the first cache, which may hold what was there before another multiprocessor wrote.
            one = tl.load(weights + at, mask=is_head, other=-1e30, cache_modifier=".cg")
            part = tl.load(attended + at[:, None] * D + d[None, :], mask=real, other=0.0, cache_modifier=".cg")
            higher = tl.maximum(most, one)
            old, new = tl.exp2(most - higher), tl.exp2(one - higher)
            most, total = higher, total * old + new
            acc = acc * old[:, None] + part.to(tl.float32) * new[:, None]
        at = row * H + head * (H // K) + group
        joined = acc / total[:, None]
        tl.store(out + at[:, None] * D + d[None, :], joined.to(out.dtype.element_ty), mask=real)
        tl.store(arrived + row * K + head, 0)


def join_reference(parts_BSHD: Tensor, weights_BSH: Tensor) -> Tensor:
    """The attention [B, H, D] that splits make together."""
    share_BSH = torch.softmax(weights_BSH * torch.log(torch.tensor(2.0)), 1)
    return (share_BSH[..., None] * parts_BSHD.float()).sum(1).to(parts_BSHD.dtype)

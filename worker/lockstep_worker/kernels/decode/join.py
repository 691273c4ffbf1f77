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
def join_splits(
    attended,
    weights,
    first,
    is_head,
    d,
    H: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Join the splits of some query heads by a running softmax, in which no load depends on another.

    Args:
        attended: of each split its attention.
        weights: of each split the logarithm to base 2 of its softmax's sum.
        first: where the heads stand in the first split; the others are H behind one another.
        is_head: which of them are heads.
        d: the dimensions, padded.
        H: query heads of a row.
        D: the head size.
        SPLITS: how many there are.
        CACHE: cache modifier of the loads.

    Returns:
        float32, the heads' attention.
    """
    real = is_head[:, None] & (d < D)[None, :]
    most = tl.full([first.shape[0]], -1e30, tl.float32)
    total = tl.zeros([first.shape[0]], tl.float32)
    acc = tl.zeros([first.shape[0], d.shape[0]], tl.float32)
    for split in tl.static_range(SPLITS):
        at = first + split * H
        one = tl.load(weights + at, mask=is_head, other=-1e30, cache_modifier=CACHE)
        part = tl.load(attended + at[:, None] * D + d[None, :], mask=real, other=0.0, cache_modifier=CACHE)
        higher = tl.maximum(most, one)
        old, new = tl.exp2(most - higher), tl.exp2(one - higher)
        most = higher
        total = total * old + new
        acc = acc * old[:, None] + part.to(tl.float32) * new[:, None]
    return acc / total[:, None]


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
        first = row * SPLITS * H + head * (H // K) + group
        # Past the first cache, which may hold what was there before another multiprocessor wrote.
        joined = join_splits(attended, weights, first, is_head, d, H, D, SPLITS, ".cg")
        at = row * H + head * (H // K) + group
        real = is_head[:, None] & (d < D)[None, :]
        tl.store(out + at[:, None] * D + d[None, :], joined.to(out.dtype.element_ty), mask=real)
        tl.store(arrived + row * K + head, 0)


def join_reference(parts_BSHD: Tensor, weights_BSH: Tensor) -> Tensor:
    """The attention [B, H, D] that splits make together."""
    share_BSH = torch.softmax(weights_BSH * torch.log(torch.tensor(2.0)), 1)
    return (share_BSH[..., None] * parts_BSHD.float()).sum(1).to(parts_BSHD.dtype)

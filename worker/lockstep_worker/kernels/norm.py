"""RMS norm of rows, alone or behind the addition to the residual that comes before it in a decoder layer.

The rounding is transformers': the sum is kept in the model's dtype, the mean square and the division are in float32,
the normed row is rounded to the dtype and then multiplied by the weight. Source of the norm: Zhang and Sennrich,
"Root Mean Square Layer Normalization", 2019.

Shape legend: T rows, E hidden size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS_PER_WARP = 512
"""Sixteen elements a thread: two loads of 16 bytes in a dtype of two bytes."""


def norm(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """Norm each row; returns [T, E]."""
    return _run(x_TE, None, weight_E, eps)


def add_norm(x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """Add `x_TE` to the residual, in place, and norm the sum; returns [T, E]."""
    assert residual_TE.shape == x_TE.shape and residual_TE.is_contiguous()
    return _run(x_TE, residual_TE, weight_E, eps)


def norm_reference(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """As `norm`, in plain torch and in transformers' own steps; over the last dimension of any shape."""
    wide = x_TE.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight_E * wide.to(x_TE.dtype)


def add_norm_reference(x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """As `add_norm`, in plain torch."""
    residual_TE += x_TE
    return norm_reference(residual_TE, weight_E, eps)


def _run(x_TE: Tensor, residual_TE: Tensor | None, weight_E: Tensor, eps: float) -> Tensor:
    rows, size = x_TE.shape
    assert x_TE.is_contiguous() and weight_E.shape == (size,)
    out_TE = torch.empty_like(x_TE)
    block = triton.next_power_of_2(size)
    warps = min(16, max(1, block // ELEMENTS_PER_WARP))
    adds = residual_TE is not None
    _norm_kernel[(rows,)](x_TE, residual_TE, weight_E, out_TE, eps, size, ADDS=adds, BLOCK_E=block, num_warps=warps)
    return out_TE


@triton.jit
def _norm_kernel(X, RESIDUAL, WEIGHT, OUT, eps, size, ADDS: tl.constexpr, BLOCK_E: tl.constexpr):
    """One row a program. X, RESIDUAL and OUT are [rows, size] without gaps; RESIDUAL is untouched unless ADDS."""
    column = tl.arange(0, BLOCK_E)
    inside = column < size
    at = tl.program_id(0).to(tl.int64) * size + column
    x = tl.load(X + at, mask=inside, other=0.0)
    weight = tl.load(WEIGHT + column, mask=inside, other=0.0)
    if ADDS:
        residual = tl.load(RESIDUAL + at, mask=inside, other=0.0)
        x = (residual.to(tl.float32) + x.to(tl.float32)).to(OUT.dtype.element_ty)
        tl.store(RESIDUAL + at, x, mask=inside)
    wide = x.to(tl.float32)
    wide = wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    normed = wide.to(OUT.dtype.element_ty).to(tl.float32) * weight.to(tl.float32)
    tl.store(OUT + at, normed.to(OUT.dtype.element_ty), mask=inside)

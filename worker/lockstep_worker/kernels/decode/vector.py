"""The multiplications of a decode step for a single row: a weight's rows, each times one vector.

Here only reading the weights takes time, so each program has its share of them in registers before it waits for the
vector: reading overlaps with the kernel before. The norms are computed anew by every program, which costs nothing
beside. Activations between kernels are float32.

Shape legend: N rows of a weight, K their length, P programs, E hidden size, H query heads, D head size, S splits of
attention, I inner size of the MLP. "Vector" below is the shape of how it is cut: rows a program and warps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.chain import chained, early, wait

PLAIN = tl.constexpr(0)
GATED = tl.constexpr(1)
BEST = tl.constexpr(2)


@dataclass(frozen=True, slots=True)
class Vector:
    """How one multiplication with a vector is cut."""

    rows: int
    """of the weight, a power of two, computed by a program"""
    warps: int


@triton.jit
def _weight(w, rows, N, K: tl.constexpr, K_PADDED: tl.constexpr, ROWS_FIT: tl.constexpr):
    """Rows of a weight, without masks where none is needed."""
    column = tl.arange(0, K_PADDED)
    at = rows.to(tl.int64)[:, None] * K + column[None, :]
    if ROWS_FIT and K == K_PADDED:
        tile = tl.load(w + at)
    else:
        tile = tl.load(w + at, mask=(rows < N)[:, None] & (column < K)[None, :], other=0.0)
    return tile


@triton.jit
def normed_kernel(
    w,
    residual,
    norm,
    bias,
    out,
    ids,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    EPILOGUE: tl.constexpr,
    BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: ROWS of the N results. Of a merged gate and up weight N is half the rows."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, K_PADDED)
    FIT: tl.constexpr = N % ROWS == 0
    early(PDL)
    tile = _weight(w, rows, N, K, K_PADDED, FIT)
    if EPILOGUE == GATED:
        up_tile = _weight(w + N * K, rows, N, K, K_PADDED, FIT)
    weight = tl.load(norm + column, mask=column < K, other=0.0).to(tl.float32)
    wait(PDL)
    x = tl.load(residual + column, mask=column < K, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, 0) / K + eps)
    x = x * weight
    y = tl.sum(tile.to(tl.float32) * x[None, :], 1) * scale
    if EPILOGUE == BEST:
        scores = tl.where(rows < N, y, -float("inf"))  # a draw's noise is to be added here
        best, index = tl.max(scores, 0, return_indices=True)  # the lowest of equals
        tl.store(out + tl.program_id(0), best)
        tl.store(ids + tl.program_id(0), tl.program_id(0) * ROWS + index)
    else:
        if BIAS:
            y += tl.load(bias + rows, mask=rows < N, other=0.0).to(tl.float32)
        if EPILOGUE == GATED:
            up = tl.sum(up_tile.to(tl.float32) * x[None, :], 1) * scale
            y = y / (1.0 + tl.exp(-y)) * up
        tl.store(out + rows, y, mask=rows < N)


def _run(w_NK, residual_K, norm_K, eps, out, cut: Vector, pdl, *, epilogue, bias=None, ids=None) -> None:
    results, length = w_NK.shape
    if epilogue == GATED.value:
        results //= 2
    normed_kernel[(triton.cdiv(results, cut.rows),)](
        w_NK,
        residual_K,
        norm_K,
        w_NK if bias is None else bias,
        out,
        out if ids is None else ids,
        eps,
        N=results,
        K=length,
        K_PADDED=triton.next_power_of_2(length),
        ROWS=cut.rows,
        EPILOGUE=epilogue,
        BIAS=bias is not None,
        num_warps=cut.warps,
        **chained(pdl),
    )


def normed(
    w_NK: Tensor,
    residual_K: Tensor,
    norm_K: Tensor,
    eps: float,
    bias_N: Tensor | None,
    out_N: Tensor,
    cut: Vector,
    pdl: int = 0,
) -> None:
    """Write w @ norm(residual) + bias to out.

    Args:
        w_NK: the weight.
        residual_K: float32.
        norm_K: the norm's weight.
        eps: of the norm.
        bias_N: or None.
        out_N: float32, written.
        cut: how it is cut.
        pdl: see `chain`.
    """
    _run(w_NK, residual_K, norm_K, eps, out_N, cut, pdl, epilogue=PLAIN.value, bias=bias_N)


def normed_gated(
    w_2IK: Tensor, residual_K: Tensor, norm_K: Tensor, eps: float, out_I: Tensor, cut: Vector, pdl: int = 0
) -> None:
    """Write silu(gate @ norm(residual)) * (up @ norm(residual)) of a merged weight. As `normed` otherwise."""
    _run(w_2IK, residual_K, norm_K, eps, out_I, cut, pdl, epilogue=GATED.value)


def normed_best(
    w_VK: Tensor,
    residual_K: Tensor,
    norm_K: Tensor,
    eps: float,
    values_P: Tensor,
    ids_P: Tensor,
    cut: Vector,
    pdl: int = 0,
) -> None:
    """The highest of each program's scores w @ norm(residual), float32, and its row, int32, the lowest of equals."""
    assert values_P.shape == (triton.cdiv(w_VK.shape[0], cut.rows),)
    _run(w_VK, residual_K, norm_K, eps, values_P, cut, pdl, epilogue=BEST.value, ids=ids_P)


def normed_reference(w_NK: Tensor, residual_K: Tensor, norm_K: Tensor, eps: float, bias_N: Tensor | None) -> Tensor:
    """What `normed` computes, and what `normed_gated` and `normed_best` then reduce."""
    x_K = F.rms_norm(residual_K, residual_K.shape, norm_K.float(), eps)
    return F.linear(x_K, w_NK.float(), None if bias_N is None else bias_N.float())


@triton.jit
def down_kernel(
    w, x, residual, N: tl.constexpr, K: tl.constexpr, K_PADDED: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr
):
    """One program: ROWS of the residual, see `down`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, K_PADDED)
    early(PDL)
    tile = _weight(w, rows, N, K, K_PADDED, N % ROWS == 0)
    wait(PDL)
    x = tl.load(x + column, mask=column < K, other=0.0)
    y = tl.sum(tile.to(tl.float32) * x[None, :], 1)
    tl.store(residual + rows, tl.load(residual + rows, mask=rows < N, other=0.0) + y, mask=rows < N)


def down(w_EI: Tensor, x_I: Tensor, residual_E: Tensor, cut: Vector, pdl: int = 0) -> None:
    """Add w @ x to the residual; x and residual float32."""
    size, length = w_EI.shape
    down_kernel[(triton.cdiv(size, cut.rows),)](
        w_EI,
        x_I,
        residual_E,
        N=size,
        K=length,
        K_PADDED=triton.next_power_of_2(length),
        ROWS=cut.rows,
        num_warps=cut.warps,
        **chained(pdl),
    )


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
        tile = _weight(w, rows, N, H * D, H * D, N % ROWS == 0)
    else:
        column = tl.arange(0, H_PADDED * D_PADDED)
        inside = (column // D_PADDED < H) & (column % D_PADDED < D)
        at = rows.to(tl.int64)[:, None] * (H * D) + (column // D_PADDED * D + column % D_PADDED)[None, :]
        tile = tl.load(w + at, mask=(rows < N)[:, None] & inside[None, :], other=0.0)
    wait(PDL)
    most = tl.full([H_PADDED], -1e30, tl.float32)
    total = tl.zeros([H_PADDED], tl.float32)
    acc = tl.zeros([H_PADDED, D_PADDED], tl.float32)
    for split in tl.static_range(SPLITS):  # a running softmax: no load depends on another
        one = tl.load(weights + split * H + head, mask=head < H, other=-1e30)
        at = (split * H + head)[:, None] * D + d[None, :]
        part = tl.load(parts + at, mask=(head < H)[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
        higher = tl.maximum(most, one)
        old, new = tl.exp2(most - higher), tl.exp2(one - higher)
        most = higher
        total = total * old + new
        acc = acc * old[:, None] + part * new[:, None]
    x = tl.reshape(acc / total[:, None], [H_PADDED * D_PADDED])
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

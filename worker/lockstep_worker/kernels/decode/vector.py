"""The multiplications of a decode step for a single row: a weight's rows, each times one vector.

Here only reading the weights takes time, so each program has its share of them in registers before it waits for the
vector: reading overlaps with the kernel before. The norms are computed anew by every program, which costs nothing
beside. Activations between kernels are float32.

The output projection is in `out`.

Shape legend: N rows of a weight, K their length, P programs, E hidden size, I inner size of the MLP. "Vector" below is
the shape of how it is cut: rows a program and warps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.chain import chained, early, wait
from lockstep_worker.kernels.draw import NO_DRAW, Candidates, DrawInput, allowed, highest, parameters, shifted
from lockstep_worker.kernels.noise import shift

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
def weight_rows(w, rows, N, K: tl.constexpr, K_PADDED: tl.constexpr, ROWS_FIT: tl.constexpr):
    """Rows of a weight, without masks where none is needed."""
    column = tl.arange(0, K_PADDED)
    at = rows.to(tl.int64)[:, None] * K + column[None, :]
    if ROWS_FIT and K == K_PADDED:
        tile = tl.load(w + at)
    else:
        tile = tl.load(w + at, mask=(rows < N)[:, None] & (column < K)[None, :], other=0.0)
    return tile


@triton.jit(do_not_specialize_on_alignment=["slots"])
def normed_kernel(
    w,
    residual,
    norm,
    bias,
    out,
    ids,
    lows,
    slots,
    seeds,
    lengths,
    integers_stride,
    temperatures,
    floats_stride,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    EPILOGUE: tl.constexpr,
    BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: ROWS of the N results. Of a merged gate and up weight N is half the rows.

    Without `lows` nothing is drawn, and the arguments behind it are None.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, K_PADDED)
    FIT: tl.constexpr = N % ROWS == 0
    early(PDL)
    tile = weight_rows(w, rows, N, K, K_PADDED, FIT)
    if EPILOGUE == GATED:
        up_tile = weight_rows(w + N * K, rows, N, K, K_PADDED, FIT)
    weight = tl.load(norm + column, mask=column < K, other=0.0).to(tl.float32)
    if lows is not None:  # older than the chain
        seed, index, temperature = parameters(
            slots, seeds, lengths, integers_stride, temperatures, floats_stride, 0, N > 0
        )
        added = shift(temperature, seed, index, rows)
    wait(PDL)
    x = tl.load(residual + column, mask=column < K, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, 0) / K + eps)
    x = x * weight
    y = tl.sum(tile.to(tl.float32) * x[None, :], 1) * scale
    if EPILOGUE == BEST:
        high = allowed(y, rows < N)
        if lows is None:
            best, offset = tl.max(high, 0, return_indices=True)  # the lowest of equals
            best_row = tl.program_id(0) * ROWS + offset
        else:
            high = tl.gather(high, tl.arange(0, ROWS), 0)  # to a thread each: a sum leaves all of them to all threads
            high, low = shifted(high, added)
            best, best_low, best_row = highest(high, low, rows, 0)
            tl.store(lows + tl.program_id(0), best_low)
        tl.store(out + tl.program_id(0), best)
        tl.store(ids + tl.program_id(0), best_row)
    else:
        if BIAS:
            y += tl.load(bias + rows, mask=rows < N, other=0.0).to(tl.float32)
        if EPILOGUE == GATED:
            up = tl.sum(up_tile.to(tl.float32) * x[None, :], 1) * scale
            y = y / (1.0 + tl.exp(-y)) * up
        tl.store(out + rows, y, mask=rows < N)


def _run(
    w_NK,
    residual_K,
    norm_K,
    eps,
    out,
    cut: Vector,
    pdl,
    *,
    epilogue,
    bias=None,
    ids=None,
    lows=None,
    draw=NO_DRAW,
) -> None:
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
        lows,
        *draw,
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
    draw: DrawInput | None,
    found_1P: Candidates,
    cut: Vector,
    pdl: int = 0,
) -> None:
    """The best of each program's logits w @ norm(residual): without a draw the highest, the lowest row of equals.

    Args:
        w_VK: the head.
        residual_K: float32.
        norm_K: the norm's weight.
        eps: of the norm.
        draw: of one row, older than the chain; None takes the arg-max.
        found_1P: written. It has `lows` where there is a draw, and then is what `draw.draw_tiles` finds in the logits.
        cut: how it is cut.
        pdl: see `chain`.
    """
    assert found_1P.ids_nB.shape == (1, triton.cdiv(w_VK.shape[0], cut.rows))
    assert (draw is None) == (found_1P.lows_nB is None)
    _run(
        w_VK,
        residual_K,
        norm_K,
        eps,
        found_1P.highs_nB,
        cut,
        pdl,
        epilogue=BEST.value,
        ids=found_1P.ids_nB,
        lows=found_1P.lows_nB,
        draw=NO_DRAW if draw is None else draw.arguments(),
    )


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
    tile = weight_rows(w, rows, N, K, K_PADDED, N % ROWS == 0)
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

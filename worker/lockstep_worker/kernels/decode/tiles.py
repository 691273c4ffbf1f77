"""Multiplications with few rows: x @ W.T in tiles whose columns are chosen so that one wave fills the GPU.

A decode's multiplication reads a large weight for 64 or a few hundred rows, and its time is the time of reading. What
counts is that all multiprocessors read all the time: hence tiles of unusual width (48, 80 or 96 columns, computed as
two products of `BLOCK_N` and `BLOCK_N2` columns) and the sum over K in `SPLIT_K` parts where the weight has few rows.
Operands come by TMA, which fills with zeros what lies outside, products run on wgmma. What follows a multiplication in
the network is done where its result still is in registers (the epilogue).

Shape legend: M rows, padded to whole tiles, N columns of the result, K length of the sum, I half of a merged gate and
up weight's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep_worker.kernels.chain import chained, early, fetch_to_cache, wait
from lockstep_worker.kernels.draw import NO_DRAW, Candidates, DrawInput, allowed, highest, parameters, score

PLAIN = tl.constexpr(0)
"""out [M, N] = x @ W.T, plus the bias where there is one"""
GATED = tl.constexpr(1)
"""out [M, I] = silu(x @ gate.T) * (x @ up.T)"""
PARTIAL = tl.constexpr(2)
"""out float32 [SPLIT_K, M, N]: the parts of the sum, to be added in this order by `rows.add`"""
BEST = tl.constexpr(3)
"""out float32 [rows, tiles] and ids int32 [rows, tiles]: each tile's highest value and its column

With a draw's parameters the highest score, see `draw`, and float32 lows [rows, tiles] for its lower part.
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """How one multiplication is cut."""

    block_m: int
    block_n: int
    block_k: int
    split_k: int = 1
    warps: int = 4
    buffers: int = 4
    """steps of the sum whose operands are in shared memory at once: Triton's `num_stages`"""
    block_n2: int = 0
    """further columns of a tile, so that a tile need not have a power of two of them"""
    ahead: int = 0
    """bytes of each of the weight's rows, a multiple of 16, that are asked for before the wait"""

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.block_n + self.block_n2


@triton.jit
def _put(out, bias, acc, up, rows, columns, M_stored, N, EPILOGUE: tl.constexpr, BIAS: tl.constexpr):
    inside = (rows < M_stored)[:, None] & (columns < N)[None, :]
    if BIAS:
        acc += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    if EPILOGUE == GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * up
    at = rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _fetch(
    w,
    first,
    N,
    K: tl.constexpr,
    LENGTH: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    EPILOGUE: tl.constexpr,
):
    """Ask for the beginning of this part of some of the weight's rows."""
    row = tl.minimum(first + tl.arange(0, ROWS), N - 1).to(tl.int64)
    BYTES: tl.constexpr = min(LENGTH * w.dtype.element_ty.primitive_bitwidth // 8, AHEAD)
    fetch_to_cache(w + row * K, BYTES, ROWS)
    if EPILOGUE == GATED:
        fetch_to_cache(w + (N + row) * K, BYTES, ROWS)


@triton.jit(do_not_specialize=["M_stored"], do_not_specialize_on_alignment=["slots"])
def multiply(
    x_desc,
    w_desc,
    w2_desc,
    w,
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
    M_stored,
    N,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_N2: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EPILOGUE: tl.constexpr,
    BIAS: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: one tile's part `program_id(0)` of the sum. `M_stored` are the rows that `out` has.

    Without `lows` nothing is drawn, and the arguments behind it are None.
    """
    part = tl.program_id(0)
    first_row = tl.program_id(1) * BLOCK_M
    column = tl.program_id(2) * (BLOCK_N + BLOCK_N2)
    LENGTH: tl.constexpr = K // SPLIT_K
    rows = first_row + tl.arange(0, BLOCK_M)
    early(PDL)
    if PDL > 0 and AHEAD > 0 and first_row == 0:
        _fetch(w + part * LENGTH, column, N, K, LENGTH, BLOCK_N, AHEAD, EPILOGUE)
        if BLOCK_N2 > 0:
            _fetch(w + part * LENGTH, column + BLOCK_N, N, K, LENGTH, BLOCK_N2, AHEAD, EPILOGUE)
    if lows is not None:  # older than the chain
        seed, index, temperature = parameters(
            slots, seeds, lengths, integers_stride, temperatures, floats_stride, rows, rows < M_stored
        )
    wait(PDL)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = acc
    if BLOCK_N2 > 0:
        acc2 = tl.zeros([BLOCK_M, BLOCK_N2], tl.float32)
        up2 = acc2
    for k in tl.range(part * LENGTH, (part + 1) * LENGTH, BLOCK_K):
        x = x_desc.load([first_row, k])
        acc = tl.dot(x, w_desc.load([column, k]).T, acc, input_precision="ieee")
        if BLOCK_N2 > 0:
            acc2 = tl.dot(x, w2_desc.load([column + BLOCK_N, k]).T, acc2, input_precision="ieee")
        if EPILOGUE == GATED:
            up = tl.dot(x, w_desc.load([N + column, k]).T, up, input_precision="ieee")
            if BLOCK_N2 > 0:
                up2 = tl.dot(x, w2_desc.load([N + column + BLOCK_N, k]).T, up2, input_precision="ieee")
    columns = column + tl.arange(0, BLOCK_N)
    if EPILOGUE == BEST:
        at = rows * tl.num_programs(2) + tl.program_id(2)
        high = allowed(acc, (columns < N)[None, :])
        if lows is None:
            best, offset = tl.max(high, 1, return_indices=True)  # the lowest of equals
            best_column = column + offset
        else:
            high, low = score(high, temperature[:, None], seed[:, None], index[:, None], columns[None, :])
            best, best_low, best_column = highest(high, low, columns[None, :], 1)
            tl.store(lows + at, best_low, mask=rows < M_stored)
        tl.store(out + at, best, mask=rows < M_stored)
        tl.store(ids + at, best_column, mask=rows < M_stored)
    else:
        if EPILOGUE == PARTIAL:
            out += part.to(tl.int64) * M_stored * N
        _put(out, bias, acc, up, rows, columns, M_stored, N, EPILOGUE, BIAS)
        if BLOCK_N2 > 0:
            columns2 = column + BLOCK_N + tl.arange(0, BLOCK_N2)
            _put(out, bias, acc2, up2, rows, columns2, M_stored, N, EPILOGUE, BIAS)


def _run(
    x_MK: Tensor,
    w_NK: Tensor,
    out: Tensor,
    tile: Tile,
    pdl: int,
    *,
    epilogue,
    stored,
    bias=None,
    ids=None,
    lows=None,
    draw=NO_DRAW,
) -> None:
    padded, length = x_MK.shape
    columns = w_NK.shape[0] // 2 if epilogue == GATED.value else w_NK.shape[0]
    assert padded % tile.block_m == 0, "rows come in whole tiles"
    assert tile.split_k == 1 or length % (tile.split_k * tile.block_k) == 0, "parts of the sum are whole tiles"
    assert tile.split_k == 1 or epilogue == PARTIAL.value, "only partial sums are split"
    multiply[(tile.split_k, padded // tile.block_m, triton.cdiv(columns, tile.columns))](
        TensorDescriptor.from_tensor(x_MK, [tile.block_m, tile.block_k]),
        TensorDescriptor.from_tensor(w_NK, [tile.block_n, tile.block_k]),
        TensorDescriptor.from_tensor(w_NK, [tile.block_n2 or tile.block_n, tile.block_k]),
        w_NK,
        w_NK if bias is None else bias,
        out,
        out if ids is None else ids,
        lows,
        *draw,
        stored,
        columns,
        K=length,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_N2=tile.block_n2,
        BLOCK_K=tile.block_k,
        SPLIT_K=tile.split_k,
        EPILOGUE=epilogue,
        BIAS=bias is not None,
        AHEAD=tile.ahead,
        num_warps=tile.warps,
        num_stages=tile.buffers,
        **chained(pdl),
    )


def plain(x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None, out_RN: Tensor, tile: Tile, pdl: int = 0) -> None:
    """Write x @ w.T + bias to out, in out's dtype.

    Args:
        x_MK: M is a multiple of the tile's rows.
        w_NK: of x's dtype; K times the element size is a multiple of 16 bytes, as for all of this module.
        bias_N: or None.
        out_RN: its R rows are the first of x's.
        tile: how it is cut; its `split_k` is 1.
        pdl: see `chain`.
    """
    _run(x_MK, w_NK, out_RN, tile, pdl, epilogue=PLAIN.value, stored=out_RN.shape[0], bias=bias_N)


def gated(x_MK: Tensor, w_2IK: Tensor, out_MI: Tensor, tile: Tile, pdl: int = 0) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) of a merged weight: gate's rows, then up's. As `plain` otherwise."""
    _run(x_MK, w_2IK, out_MI, tile, pdl, epilogue=GATED.value, stored=out_MI.shape[0])


def partial(x_MK: Tensor, w_NK: Tensor, parts_SMN: Tensor, tile: Tile, pdl: int = 0) -> None:
    """The sum over K in the tile's `split_k` parts.

    Args:
        x_MK: M is a multiple of the tile's rows, K of `split_k * block_k`.
        w_NK: as in `plain`.
        parts_SMN: float32, S is the tile's `split_k`.
        tile: how it is cut.
        pdl: see `chain`.
    """
    assert parts_SMN.shape == (tile.split_k, x_MK.shape[0], w_NK.shape[0]) and parts_SMN.is_contiguous()
    _run(x_MK, w_NK, parts_SMN, tile, pdl, epilogue=PARTIAL.value, stored=x_MK.shape[0])


def best(x_MK: Tensor, w_VK: Tensor, draw: DrawInput | None, found_RT: Candidates, tile: Tile, pdl: int = 0) -> None:
    """Each row's best among each tile's columns: without a draw the highest logit, of equal ones the lowest column.

    Args:
        x_MK: M is a multiple of the tile's rows.
        w_VK: the head.
        draw: of R rows, older than the chain; None takes the arg-max.
        found_RT: written; its R rows are the first of x's, T = V / the tile's columns, rounded up. It has `lows` where
            there is a draw, and then is what `draw.draw_tiles` finds in the logits.
        tile: how it is cut; without `split_k` and `block_n2`.
        pdl: see `chain`.
    """
    rows, tiles = found_RT.ids_nB.shape
    assert tile.block_n2 == 0 and tiles == triton.cdiv(w_VK.shape[0], tile.block_n)
    assert (draw is None) == (found_RT.lows_nB is None)
    _run(
        x_MK,
        w_VK,
        found_RT.highs_nB,
        tile,
        pdl,
        epilogue=BEST.value,
        stored=rows,
        ids=found_RT.ids_nB,
        lows=found_RT.lows_nB,
        draw=NO_DRAW if draw is None else draw.arguments(),
    )

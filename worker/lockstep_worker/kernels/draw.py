"""Draw one token a row in two kernels: the best of each tile of columns, then the best of a row's tiles.

The draw is the Gumbel-max trick over counter-based noise (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011): with E an Exponential(1) number of its own for each entry, the arg-max of `l / T - log E` is distributed as
softmax(l / T). All entries of a row may be multiplied by T, so it is the arg-max of `l - T * log E` too. This form
divides by nothing, needs no maximum first, and is the plain arg-max at T = 0.

Sums of a large logit and a small T * log E would round to ties, which the lowest id would always win. So a score is an
unevaluated sum of two float32, `high + low`, whose rounding error Knuth's two-sum finds exactly. Scores compare as the
exact numbers do, so neither the tile size nor the batch changes a draw. A head that draws where it computes the logits
(`decode.tiles`, `decode.vector`) uses `score` too, and finds the same bits: wherever rounding twice or once would
differ, `fma` says which it is, and nothing is left for a compiler to fuse.

Shapes: n rows, V vocabulary, B tiles. Tables have a row a slot and may be strided views.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.noise import shift

BANNED = tl.constexpr(float("-inf"))
INFINITE = tl.constexpr(float("inf"))
NO_ID = tl.constexpr((1 << 31) - 1)
HOTTEST = tl.constexpr(2.0**96)
"""Greater temperatures count as this one: beside it no logit below 1e20 matters, and products with it are finite."""

FEW_ROWS = 16
NARROW, WIDE = 1024, 4096
"""Columns of a tile: few rows need many tiles to fill a device, many rows few tiles to spare its scheduler."""


@dataclass(frozen=True, slots=True)
class DrawInput:
    """What the draws of n rows depend on beside their logits. The tables have S rows, n rows name theirs."""

    rows: Tensor
    """int64 [n], slots; several may name the same"""
    seeds: Tensor
    """int64 [S]"""
    lengths: Tensor
    """int64 [S], strided as `seeds`: the draw's index"""
    temperatures: Tensor
    """float32 [S]; 0 takes the arg-max, the lowest id on ties"""

    def arguments(self) -> tuple[Tensor | int, ...]:
        """Give a kernel what `parameters` takes first."""
        assert self.seeds.stride(0) == self.lengths.stride(0)
        integers_stride, floats_stride = self.seeds.stride(0), self.temperatures.stride(0)
        return (self.rows, self.seeds, self.lengths, integers_stride, self.temperatures, floats_stride)


NO_DRAW = (None,) * 6
"""In place of `DrawInput.arguments`, to a kernel that draws only where it is asked to."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best entry of each tile."""

    highs_nB: Tensor
    """float32, as `lows_nB`: the two parts of its score"""
    lows_nB: Tensor | None
    """None where all are zero, as those of plain logits are"""
    ids_nB: Tensor
    """int32, the lowest of equal ones"""


@triton.jit
def shifted(logit, added):
    """Add an entry's shift to its logit: the rounded sum and what the rounding lost, float32 like `logit`."""
    total = logit + added
    in_total = total - logit
    lost = (logit - (total - in_total)) + (added - in_total)
    return total, tl.where(tl.abs(lost) < INFINITE, lost, 0.0)  # of an infinite sum nothing is left


@triton.jit
def score(logit, temperature, seed, index, columns):
    """An entry's score in its two parts, float32 like `logit`."""
    return shifted(logit, shift(temperature, seed, index, columns))


@triton.jit
def parameters(slots, seeds, lengths, integers_stride, temperatures, floats_stride, rows, inside):
    """Load the seeds, the draw's indices and the temperatures of `rows`; where not `inside`, nothing is read."""
    slot = tl.load(slots + rows, mask=inside, other=0)
    seed = tl.load(seeds + slot * integers_stride, mask=inside, other=0)
    index = tl.load(lengths + slot * integers_stride, mask=inside, other=0)
    temperature = tl.load(temperatures + slot * floats_stride, mask=inside, other=0.0)
    return seed, index, tl.minimum(tl.maximum(temperature, 0.0), HOTTEST)


@triton.jit
def allowed(logit, inside):
    """Ban what is no number and what is not `inside`."""
    return tl.where(inside & (logit > BANNED), logit, BANNED)


@triton.jit
def highest(high, low, columns, AXIS: tl.constexpr):
    """Find the highest score along an axis, in its two parts, and the lowest column that has it."""
    best = tl.max(high, AXIS)
    is_best = high == tl.expand_dims(best, AXIS)
    best_low = tl.max(tl.where(is_best, low, BANNED), AXIS)
    is_best &= low == tl.expand_dims(best_low, AXIS)
    return best, best_low, tl.min(tl.where(is_best, columns, NO_ID), AXIS)


@triton.jit(do_not_specialize_on_alignment=["slots", "offsets"])  # views of a batch's buffers, which lie anywhere
def _draw_tiles_kernel(
    logits,
    logits_stride,
    offsets,
    slots,
    seeds,
    lengths,
    integers_stride,
    temperatures,
    floats_stride,
    highs,
    lows,
    ids,
    width,
    TILE: tl.constexpr,
):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tile * TILE + tl.arange(0, TILE)
    high = tl.load(logits + row * logits_stride + columns, mask=columns < width, other=BANNED).to(tl.float32)
    high = allowed(high, columns < width)
    low = tl.zeros([TILE], tl.float32)
    seed, index, temperature = parameters(
        slots, seeds, lengths, integers_stride, temperatures, floats_stride, row, row >= 0
    )
    if temperature > 0:
        if offsets is not None:
            index += tl.load(offsets + row)
        high, low = score(high, temperature, seed, index, columns)
    best, best_low, column = highest(high, low, columns, 0)
    at = row * tl.num_programs(1) + tile
    tl.store(highs + at, best)
    tl.store(lows + at, best_low)
    tl.store(ids + at, column)


@triton.jit
def best_of_tiles(highs, lows, ids, row, tiles, WIDTH: tl.constexpr):
    """Find a row's token among its tiles' candidates: int32. `WIDTH` is a power of two, at least `tiles`."""
    tile = tl.arange(0, WIDTH)
    at, is_tile = row * tiles + tile, tile < tiles
    high = tl.load(highs + at, mask=is_tile, other=BANNED)
    is_best = high == tl.max(high, 0)
    if lows is not None:
        low = tl.load(lows + at, mask=is_tile, other=BANNED)
        is_best &= low == tl.max(tl.where(is_best, low, BANNED), 0)
    return tl.min(tl.where(is_best, tl.load(ids + at, mask=is_tile, other=NO_ID), NO_ID), 0)


@triton.jit
def _pick_kernel(highs, lows, ids, tokens, tiles, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tl.store(tokens + row, best_of_tiles(highs, lows, ids, row, tiles, WIDTH).to(tl.int64))


def warps_of_tiles(width: int) -> int:
    """Warps that pick among so many tiles, a power of two: each thread has eight, so that none lie in memory."""
    return min(max(width // 256, 1), 16)


def draw_tiles(
    logits_nV: Tensor, draw: DrawInput, offsets: Tensor | None = None, tile: int | None = None
) -> Candidates:
    """Find the best score of each tile of columns, in one pass over the logits.

    An entry of minus infinity is never drawn, and no more is one that is no number, unless the row has no other: then
    the lowest id is. Of several infinite entries the lowest id wins.

    Args:
        logits_nV: of any float type, with any row stride.
        draw: of the n rows.
        offsets: int64 [n], what is added to the slot's length to get the draw's index; None is zero everywhere.
        tile: columns of a tile, a power of two; the draw does not depend on it.
    """
    assert logits_nV.stride(1) == 1
    num_rows, width = logits_nV.shape
    tile = tile or (NARROW if num_rows <= FEW_ROWS else WIDE)
    tiles = triton.cdiv(width, tile)
    scores = torch.empty((2, num_rows, tiles), dtype=torch.float32, device=logits_nV.device)
    found = Candidates(scores[0], scores[1], torch.empty_like(scores[0], dtype=torch.int32))
    _draw_tiles_kernel[(num_rows, tiles)](
        logits_nV,
        logits_nV.stride(0),
        offsets,
        *draw.arguments(),
        found.highs_nB,
        found.lows_nB,
        found.ids_nB,
        width,
        TILE=tile,
        num_warps=4 if tile <= NARROW else 8,
    )
    return found


def pick(candidates: Candidates) -> Tensor:
    """Pick each row's token: int64 [n]."""
    num_rows, tiles = candidates.ids_nB.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=candidates.ids_nB.device)
    width = triton.next_power_of_2(tiles)
    _pick_kernel[(num_rows,)](
        candidates.highs_nB,
        candidates.lows_nB,
        candidates.ids_nB,
        tokens,
        tiles,
        WIDTH=width,
        num_warps=warps_of_tiles(width),
    )
    return tokens


def draw_reference(logits_nV: Tensor, temperature_n: Tensor, noise_nV: Tensor) -> Tensor:
    """Draw with the same noise in float64, without tiles: int64 [n]."""
    temperature = temperature_n.clamp(max=HOTTEST.value).double().unsqueeze(1)
    scores = logits_nV.double().nan_to_num(nan=BANNED.value, posinf=torch.inf, neginf=BANNED.value)
    return (scores - temperature * noise_nV.double().log()).argmax(dim=1)

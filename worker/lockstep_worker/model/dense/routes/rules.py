"""How to cut a multiplication that nobody measured: valid for any shape, near what won for others.

What won: with up to 64 rows tiles of the width that gives every multiprocessor about one tile, the sum split in four
where the weight has few rows; with more rows torch's own multiplication, which then is bound by arithmetic.
"""

from __future__ import annotations

import triton

from lockstep_worker.kernels import chain
from lockstep_worker.kernels.decode.attention import Split
from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.model.dense.routes.uses import HEADS, Use, fits

COLUMNS = ((32, 0), (32, 16), (64, 0), (64, 16), (64, 32), (128, 0))
"""Widths of a tile, as its two products' columns."""
WIDE = 2048
"""Hidden size above which a network is wide; 1024 and 2560 were measured."""
SHARED_BYTES = 176 * 1024
"""Of a multiprocessor's shared memory for one tile's operands."""


def tile(use: Use, rows: int, out: int, length: int, multiprocessors: int) -> Tile | None:
    """The cut of a multiplication with so many padded rows; None is torch's own."""
    if use in HEADS:
        return Tile(rows, 128, 64) if rows <= 64 else Tile(128, 128, 64, warps=8)
    if rows > 64:
        return None
    columns = out // 2 if use == "gate_up" else out
    splits = (4, 2, 1) if use == "residual" else (1,)
    cuts = [_staged(use, rows, first, second, length, split) for split in splits for first, second in COLUMNS]

    def time(cut: Tile) -> float:
        waves = triton.cdiv(cut.split_k * triton.cdiv(columns, cut.columns), multiprocessors)
        return waves * cut.columns / cut.split_k

    return min((cut for cut in cuts if fits(cut, use, rows, length)), key=time)


def _staged(use: Use, rows: int, first: int, second: int, length: int, split: int) -> Tile:
    """A tile with as long a step and as many buffers as shared memory takes."""
    operands = rows + (first + second) * (2 if use == "gate_up" else 1)
    block = 128 if operands <= 192 and length % (128 * split) == 0 else 64
    buffers = min(6, SHARED_BYTES // (operands * block * 2))
    return Tile(rows, first, block, split_k=split, buffers=buffers, block_n2=second)


def vector(use: Use, length: int) -> Vector:
    """The cut of a multiplication with one row: 64 weights a thread, in registers."""
    padded = triton.next_power_of_2(length)
    warps = 8 if padded <= 2048 else 16
    weights = padded * (2 if use == "gate_up" else 1)
    return Vector(rows=max(1, 64 * 32 * warps // weights), warps=warps)


def split(rows: int, kv_heads: int, head_dim: int, multiprocessors: int) -> Split:
    """The cut of attention: few rows split their contexts until each multiprocessor has four programs."""
    programs = rows * kv_heads
    narrow = 1 if head_dim <= 128 else 2
    splits = min(_power_below(4 * multiprocessors // programs), 8)
    if rows == 1:
        return Split(splits, tokens=128 // narrow, warps=8, ahead=True, buffers=1)
    if splits > 1:
        return Split(splits, tokens=64 // narrow, warps=4, ahead=True, buffers=3)
    if programs > 8 * multiprocessors:
        return Split(1, tokens=32 // narrow, warps=1, ahead=False, buffers=3)
    return Split(1, tokens=64 // narrow, warps=2, ahead=True, buffers=3)


def chain_mode(rows: int, hidden: int, *, torch_multiplies: bool) -> int:
    """When kernels let their successors start, see `kernels.chain`.

    Beside torch's own multiplications, which overlap with nothing, early starts only take room. Wide networks have
    kernels long enough to start the next one with them.
    """
    if torch_multiplies:
        return chain.OFF
    return chain.AT_ONCE if rows > 1 and hidden > WIDE else chain.AFTER_WAIT


def _power_below(number: int) -> int:
    return 1 << max(number.bit_length() - 1, 0)

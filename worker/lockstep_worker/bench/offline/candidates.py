"""What `bench cuts` tries: tiles that come near to filling the multiprocessors, and shares that fit into registers."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain, product

import triton

from lockstep_worker.kernels.decode.attention import Split
from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.model.dense.routes.uses import HEADS, Use, fits

_COLUMNS = ((16, 0), (32, 0), (32, 16), (64, 0), (64, 16), (64, 32), (128, 0), (256, 0))
"""Widths of a tile, as its two products' columns."""
_SHARED_BYTES = (100 << 10, 200 << 10)
"""Of a multiprocessor's shared memory: so that two programs fit beside each other, or one has all."""
_WEIGHTS_A_THREAD = (16, 32, 64, 128)
_KEPT, _KEPT_ALIKE = 12, 2


def tiles_for(use: Use, rows: int, out: int, length: int, multiprocessors: int) -> list[Tile]:
    """List the tiles for a multiplication of so many padded rows whose waves are the shortest."""
    columns = out // 2 if use == "gate_up" else out
    weights = 2 if use == "gate_up" else 1
    found: dict[Tile, float] = {}
    for height, (first, second), split, block, shared in product(
        {min(rows, 64), min(rows, 128)}, _COLUMNS, (1, 2, 4, 8), (64, 128, 256), _SHARED_BYTES
    ):
        buffers = min(8, shared // ((height + (first + second) * weights) * block * 2))
        warps = 8 if height * (first + second) * weights > 128 * 64 else 4
        tile = Tile(height, first, block, split_k=split, warps=warps, buffers=buffers, block_n2=second)
        if buffers < 2 or length % block or height * (first + second) * weights > 128 * 256:
            continue
        if not fits(tile, use, rows, length):
            continue
        waves = triton.cdiv(split * rows // height * triton.cdiv(columns, tile.columns), multiprocessors)
        width = tile.columns * weights
        found[tile] = waves * max(height + width, height * width / 64) / split  # its operands, or its products
    kept: dict[tuple[int, int, int], list[Tile]] = defaultdict(list)
    for tile in sorted(found, key=lambda tile: (found[tile], -tile.block_k * tile.buffers)):
        alike = kept[tile.block_m, tile.columns, tile.split_k]
        if len(alike) < _KEPT_ALIKE:
            alike.append(tile)
    return list(chain.from_iterable(kept.values()))[:_KEPT]


def vectors_for(use: Use, length: int) -> list[Vector]:
    """List the shares of a weight with which a thread has some weights, and not too many."""
    each = triton.next_power_of_2(length) * (2 if use == "gate_up" else 1)
    found = [
        Vector(rows, warps)
        for warps in (2, 4, 8, 16)
        for rows in (1, 2, 4, 8, 16, 32)
        if rows * each // (32 * warps) in _WEIGHTS_A_THREAD
    ]
    return [cut for cut in found if use not in HEADS or cut.rows >= 4]


def splits_for(rows: int) -> list[Split]:
    """List the cuts of attention for so many rows."""
    if rows == 1:
        return [
            Split(splits, 128, warps, ahead=True, buffers=buffers)
            for splits, warps, buffers in product((8, 16), (4, 8), (1, 2))
        ]
    shapes = ((16, 1), (32, 1), (32, 2), (64, 1), (64, 2), (64, 4), (128, 4), (128, 8))
    found = [
        Split(splits, tokens, warps, ahead=ahead, buffers=buffers)
        for (tokens, warps), ahead, splits, buffers in product(shapes, (True, False), (1, 2, 4), (1, 3, 4))
        if ahead or buffers > 1
    ]
    if rows <= 16:
        return [cut for cut in found if cut.tokens >= 64 and cut.ahead and cut.warps > 1]
    return [cut for cut in found if cut.splits == 1 and cut.tokens <= 64 and cut.buffers != 1]

"""What a step's multiplications are for, and which cuts each of them allows."""

from __future__ import annotations

from typing import Literal

from lockstep_worker.kernels.decode.tiles import Tile

Use = Literal["qkv", "residual", "gate_up", "head"]
"""`residual` is the output and the down projection: what is added to the residual."""


def padded(rows: int) -> int:
    """Rows that the tiles compute for so many: 64, then multiples of 128, so that tiles of 64 or 128 rows fit."""
    return 64 if rows <= 64 else -(-rows // 128) * 128


def fits(tile: Tile, use: Use, rows: int, length: int) -> bool:
    """Whether a tile can serve a multiplication of so many padded rows and a sum of this length."""
    if rows % tile.block_m:
        return False
    if tile.split_k > 1 and (use != "residual" or length % (tile.split_k * tile.block_k)):
        return False
    return use != "head" or tile.block_n2 == 0

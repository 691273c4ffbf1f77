"""What a step's multiplications are for, and which cuts each of them allows."""

from __future__ import annotations

from typing import Literal

from lockstep_worker.kernels.decode.tiles import Tile

Use = Literal["qkv", "residual", "gate_up", "head", "drawn_head"]
"""`residual` is the output and the down projection: what is added to the residual. A head that draws computes much more
for each of its results, so its tiles are others."""
HEADS = ("head", "drawn_head")
BUCKETS = (16, 64, 256)
"""Numbers of rows whose cuts were measured, each for all above the one before."""


def padded(rows: int) -> int:
    """Rows that the tiles compute for so many: what the tensor cores take at least, or whole tiles of 64 or 128."""
    return 16 if rows <= 16 else 64 if rows <= 64 else -(-rows // 128) * 128


def heights(max_rows: int) -> list[int]:
    """All that `padded` gives for so many rows and fewer."""
    most = padded(max_rows)
    return [height for height in (16, 64, *range(128, most + 1, 128)) if height <= most]


def bucket_of(rows: int) -> int | None:
    """The bucket whose cuts serve so many padded rows; None where there is none."""
    return next((bucket for bucket in BUCKETS if rows <= bucket), None)


def fits(tile: Tile, use: Use, rows: int, length: int) -> bool:
    """Whether a tile can serve a multiplication of so many padded rows and a sum of this length."""
    if rows % tile.block_m:
        return False
    if tile.split_k > 1 and (use != "residual" or length % (tile.split_k * tile.block_k)):
        return False
    return use not in HEADS or tile.block_n2 == 0

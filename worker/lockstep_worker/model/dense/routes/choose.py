"""The cut of each multiplication: the measured one where it fits, else the rule's."""

from __future__ import annotations

from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.model.dense.routes import measured, rules
from lockstep_worker.model.dense.routes.uses import Use, fits


def tile(use: Use, rows: int, out: int, length: int, multiprocessors: int) -> Tile | None:
    """How to cut x @ W.T.

    Args:
        use: what for.
        rows: of x, padded.
        out: rows of the weight.
        length: of the sum.
        multiprocessors: of the GPU.

    Returns:
        None where torch's own multiplication is to be used.
    """
    bucket = next((bucket for bucket in measured.BUCKETS if rows <= bucket), None)
    key = (bucket, use, out, length)
    if key in measured.tiles():
        won = measured.tiles()[key]
        if won is None or fits(won, use, rows, length):
            return won
    return rules.tile(use, rows, out, length, multiprocessors)


def vector(use: Use, out: int, length: int) -> Vector:
    """How to cut W @ x; args as of `tile`."""
    return measured.vectors().get((use, out, length)) or rules.vector(use, length)

"""The cut of each multiplication and of attention: the measured one where it fits, else the rule's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep_worker.kernels.decode.attention import Split
from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.model.dense.routes import measured, rules
from lockstep_worker.model.dense.routes.uses import Use, bucket_of, fits


@dataclass(frozen=True)
class Cuts:
    """Says how the multiplications and the attention of a decode step are cut."""

    multiprocessors: int
    """of the GPU"""
    tiles: Mapping[measured.TileKey, Tile | None] = field(default_factory=measured.tiles)
    """what won, by what it cuts"""
    vectors: Mapping[measured.VectorKey, Vector] = field(default_factory=measured.vectors)
    """the same for one row"""
    splits: Mapping[int, Split] = field(default_factory=dict)
    """of attention, by the number of rows; the rule cuts all others"""

    def tile(self, use: Use, rows: int, out: int, length: int) -> Tile | None:
        """How to cut x @ W.T.

        Args:
            use: what for.
            rows: of x, padded.
            out: rows of the weight.
            length: of the sum.

        Returns:
            None where torch's own multiplication is to be used.
        """
        key = (bucket_of(rows), use, out, length)
        if key in self.tiles:
            won = self.tiles[key]
            if won is None or fits(won, use, rows, length):
                return won
        return rules.tile(use, rows, out, length, self.multiprocessors)

    def vector(self, use: Use, out: int, length: int) -> Vector:
        """How to cut W @ x; args as of `tile`."""
        return self.vectors.get((use, out, length)) or rules.vector(use, length)

    def split(self, rows: int, kv_heads: int, head_dim: int) -> Split:
        """How to cut attention; see `rules.split`."""
        return self.splits.get(rows) or rules.split(rows, kv_heads, head_dim, self.multiprocessors)

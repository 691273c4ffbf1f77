"""The cut of each multiplication and of attention: the measured one where it fits, else the rule's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockstep_worker.kernels.decode.attention import Split
from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.model.dense.routes import measured, rules
from lockstep_worker.model.dense.routes.uses import Use, bucket_of, fits, padded


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
    chain: int | None = None
    """when kernels let their successors start; the rule says where it is None"""

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

    def chain_mode(self, rows: int, gate_up: Sequence[int]) -> int:
        """When kernels let their successors start; `gate_up` is the shape of the largest weight of a layer.

        See `rules.chain_mode`.
        """
        if self.chain is not None:
            return self.chain
        torch_multiplies = rows > 1 and self.tile("gate_up", padded(rows), gate_up[0], gate_up[1]) is None
        return rules.chain_mode(rows, gate_up[1], torch_multiplies=torch_multiplies)

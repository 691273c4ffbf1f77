"""What a decode step reads, beside weights and cache.

Shape legend: B rows, M most blocks a row has.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lockstep_worker.kernels.decode.attention import Heads
from lockstep_worker.model.dense.weights import DenseLayer, DenseWeights


@dataclass(frozen=True, slots=True)
class StepInput:
    """One step's rows, all tensors on the model's device."""

    tokens: Tensor
    """int64 [B]: each row's newest token"""
    positions: Tensor
    """int64 [B]: its index in its sequence, whose older tokens are in the cache"""
    block_tables: Tensor
    """int32 [B, M]: each row's blocks in order, the newest token's among them; any stride between rows"""

    @property
    def rows(self) -> int:
        """B."""
        return self.tokens.shape[0]


def heads_of(weights: DenseWeights, layer: DenseLayer) -> Heads:
    """What a layer's attention is."""
    return Heads(
        query_heads=weights.query_heads,
        kv_heads=weights.kv_heads,
        head_dim=weights.head_dim,
        scaling=weights.scaling,
        eps=weights.eps,
        window=layer.sliding_window,
    )

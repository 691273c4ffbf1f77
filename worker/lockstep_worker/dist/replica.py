"""Which ranks form a data replica: a copy of the model with a scheduler and a cache of its own. Pure numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """A rank's place: replica `index` of `count`, each of `width` consecutive ranks that share every layer."""

    index: int = 0
    count: int = 1
    rank: int = 0
    """Within the replica; its rank 0 publishes the tokens."""
    width: int = 1

    @classmethod
    def of(cls, rank: int, *, tensor_parallel: int, data_parallel: int) -> Replica:
        """Find a rank's place in its group."""
        return cls(rank // tensor_parallel, data_parallel, rank % tensor_parallel, tensor_parallel)

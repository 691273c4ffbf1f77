"""How the ranks of a group divide a model's work: data, pipeline, tensor and expert ranks, in one value. No torch.

Ranks are numbered so that those that talk most are neighbours: tensor ranks of a stage first, then the stages of a data
replica, then the data replicas.

    rank = (data * pipeline_size + pipeline) * tensor_size + tensor

Experts lie across that: `expert.size` consecutive ranks of all data replicas share one set of experts.
Of two data replicas with two tensor ranks each, rank 2 is `data 1 of 2, pipeline 0 of 1, tensor 0 of 2`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Axis:
    """One kind of parallelism as one rank sees it: its index among the `size` ranks that it shares the work with."""

    size: int = 1
    index: int = 0
    group: Any = None
    """The torch.distributed group of those ranks; None where the axis has no collective, and for the default group."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Where a rank stands on every axis; the default is a group of one."""

    rank: int = 0
    data: Axis = Axis()
    """Copies of the attention part of a model, each with a scheduler, a cache and requests of its own."""
    pipeline: Axis = Axis()
    """Stages of layers."""
    tensor: Axis = Axis()
    """Ranks that share every layer."""
    expert: Axis = Axis()
    """Ranks that share the experts of a layer."""

    @classmethod
    def of(cls, rank: int, *, data: int = 1, pipeline: int = 1, tensor: int = 1, expert: int = 1) -> Topology:
        """Find where a rank stands in a group of `data * pipeline * tensor` ranks."""
        return cls(
            rank,
            data=Axis(data, rank // (pipeline * tensor)),
            pipeline=Axis(pipeline, rank // tensor % pipeline),
            tensor=Axis(tensor, rank % tensor),
            expert=Axis(expert, rank % expert),
        )

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self.data.size * self.replica_size

    @property
    def replica_size(self) -> int:
        """Consecutive ranks that form one data replica."""
        return self.pipeline.size * self.tensor.size

    @property
    def is_leader(self) -> bool:
        """Whether this is the first rank of its data replica, which publishes the replica's tokens."""
        return self.rank % self.replica_size == 0

    @property
    def runs_together(self) -> bool:
        """Whether all ranks of the group must take part in each other's forwards.

        Experts are exchanged among data replicas in the middle of a forward, so one replica must not leave it out.
        Dense replicas have no collective in common.
        """
        return self.expert.size > 1

    def list_peers(self, axis: str) -> Iterator[list[int]]:
        """Yield, for every set of ranks that differ on this axis alone, those ranks; the same on all ranks."""
        own, stride = getattr(self, axis), self._stride(axis)
        for start in range(self.size):
            if start // stride % own.size == 0:  # the first of its set
                yield [start + index * stride for index in range(own.size)]

    def with_groups(self, groups: dict[str, Any]) -> Topology:
        """Return this topology with the torch.distributed group of each named axis."""
        return replace(self, **{axis: replace(getattr(self, axis), group=group) for axis, group in groups.items()})

    def _stride(self, axis: str) -> int:
        """How far apart two neighbours on an axis are."""
        return {"tensor": 1, "expert": 1, "pipeline": self.tensor.size, "data": self.replica_size}[axis]


ALONE = Topology()
"""The one rank of a group of one."""

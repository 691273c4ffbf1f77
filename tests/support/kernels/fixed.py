"""A batch-invariant network over a cache, and the ways in which a request's last token may come to its logits."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep_worker.attention.batch import PackedBatch
from lockstep_worker.attention.paged import PagedBackend
from lockstep_worker.attention.protocol import AttentionShape
from lockstep_worker.model.dense.forward import DenseForward
from support.kernels.dense_network import Shape, random_cache, random_network
from support.worlds.greedy import Sequence, pack


class FixedNetwork:
    """The fast path and its attention, over a cache full of somebody's keys and values."""

    def __init__(
        self, shape: Shape, *, blocks: int, block_size: int, device: str = "cpu", batch_invariant: bool = True
    ) -> None:
        weights = random_network(shape, device)
        kv = random_cache(shape, blocks, block_size, device)
        heads = frozenset({shape.heads})
        asked = AttentionShape(shape.layers, heads, shape.kv_heads, shape.head_dim, frozenset())
        self.shape, self.block_size, self.device = shape, block_size, torch.device(device)
        self.backend = PagedBackend(kv, asked, batch_invariant=batch_invariant)
        self.forward = DenseForward(weights, kv, batch_invariant=batch_invariant)
        self._free = torch.randperm(blocks, generator=torch.Generator().manual_seed(3)).tolist()

    def start(self, length: int, seed: int, num_computed: int = 0) -> Sequence:
        """A sequence of random tokens in blocks of its own, the first of which may count as computed."""
        tokens = torch.randint(0, self.shape.vocabulary, (length,), generator=torch.Generator().manual_seed(seed))
        blocks = [self._free.pop() for _ in range(-(-length // self.block_size))]
        return Sequence(tokens.tolist(), length, 0, blocks, num_computed)

    def end(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self._free += sequence.blocks

    def pack(self, sequences: list[Sequence], counts: list[int]) -> PackedBatch:
        return pack(sequences, counts, self.block_size, self.device)

    def run(self, batch: PackedBatch) -> Tensor:
        return self.forward(batch, self.backend.prepare(batch))

    def last_logits(self, length: int, counts: list[int], neighbours: list[tuple[int, int]]) -> Tensor:
        """Compute one request's last token, [V].

        Args:
            length: the request's tokens, always the same ones.
            counts: how many of them each of its runs brings.
            neighbours: in each run there are as many others, given as (tokens that it brings, its context); the request
                is in their midst.
        """
        own = self.start(length, seed=1)
        others = [
            self.start(context, seed=100 + index, num_computed=context - count)
            for index, (count, context) in enumerate(neighbours)
        ]
        middle = len(others) // 2
        for count in counts:
            batch = self.pack([*others[:middle], own, *others[middle:]], self._counts(neighbours, middle, count))
            logits = self.run(batch)
            own.num_computed += count
        self.end(own, *others)
        return logits[middle]

    @staticmethod
    def _counts(neighbours: list[tuple[int, int]], middle: int, own: int) -> list[int]:
        counts = [count for count, _ in neighbours]
        return [*counts[:middle], own, *counts[middle:]]

"""Random sequences over a paged cache, their blocks scattered, the cells that are nobody's poisoned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep_worker.kernels.paged_arguments import PagedSequences


@dataclass
class PagedCase:
    """Sequences given as (tokens that it brings, its context), with the heads and the cache they run over."""

    lengths: Sequence[tuple[int, int]]
    kv_heads: int = 1
    group: int = 2
    head_dim: int = 16
    block_size: int = 4
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        needed = [-(-context // self.block_size) for _, context in self.lengths]
        order = torch.randperm(sum(needed) + 1, generator=generator)
        tables = torch.full((len(needed), max([*needed, 1]) + 1), int(order[-1]))
        for row, blocks in enumerate(torch.split(order[:-1], needed)):
            tables[row, : len(blocks)] = blocks
        shape = (len(order), self.block_size, self.kv_heads, self.head_dim)
        self.keys, self.values = (self._poison(torch.randn(shape, generator=generator), tables) for _ in range(2))
        tokens = sum(queries for queries, _ in self.lengths)
        q = torch.randn((tokens, self.kv_heads * self.group, self.head_dim), generator=generator)
        self.q = q.to(self.dtype).to(self.device)
        self.block_tables = tables.int().to(self.device)
        starts = torch.tensor([0, *(queries for queries, _ in self.lengths)]).cumsum(0)
        self.query_start = starts.int().to(self.device)
        self.context_lens = torch.tensor([context for _, context in self.lengths]).int().to(self.device)

    def sequences(self, queries: int) -> PagedSequences:
        """Assign `queries` tokens a program; with 1 each sequence brings one token and needs no assignments."""
        assignments = None
        if queries > 1 or any(count > 1 for count, _ in self.lengths):
            pairs = [(row, first) for row, (count, _) in enumerate(self.lengths) for first in range(0, count, queries)]
            assignments = torch.tensor(pairs, dtype=torch.int32, device=self.device)
        return PagedSequences(self.block_tables, self.context_lens, self.query_start, assignments)

    def _poison(self, cache: Tensor, tables: Tensor) -> Tensor:
        """Put NaN where no sequence has a token: who reads there spoils what it computes."""
        owned = torch.zeros(cache.shape[:2], dtype=torch.bool)
        for row, (_, context) in enumerate(self.lengths):
            position = torch.arange(context)
            owned[tables[row, position // self.block_size], position % self.block_size] = True
        cache[~owned] = float("nan")
        return cache.to(self.dtype).to(self.device)

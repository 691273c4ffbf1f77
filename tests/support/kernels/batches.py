"""Batches as the runner packs them, over a cache with the contexts already in it, for two backends to attend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lockstep_worker.attention.batch import HostBatch, PackedBatch
from lockstep_worker.attention.protocol import AttentionShape
from lockstep_worker.cache.tensors import KVCache


@dataclass(frozen=True)
class Heads:
    """A model's one layer."""

    kv_heads: int
    group: int
    head_dim: int

    @property
    def shape(self) -> AttentionShape:
        heads = frozenset({self.kv_heads * self.group})
        return AttentionShape(1, heads, self.kv_heads, self.head_dim, frozenset())

    def cache(self, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        """A cache full of somebody's keys and values."""
        kv = KVCache(
            num_layers=1,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
            device=device,
        )
        for cache in (*kv.keys, *kv.values):
            cache.normal_()
        return kv

    def states(self, tokens: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Random queries, keys and values, strided as a fused projection's."""
        heads = (self.group + 2) * self.kv_heads
        fused = torch.randn((tokens, heads, self.head_dim), dtype=dtype, device=device)
        q, k, v = torch.split(fused, [self.group * self.kv_heads, self.kv_heads, self.kv_heads], dim=1)
        return q, k, v


def pack_lengths(lengths: Sequence[tuple[int, int]], kv: KVCache) -> PackedBatch:
    """Pack sequences given as (tokens that it brings, its context), their blocks scattered over the cache."""
    device, size = kv.keys[0].device, kv.block_size
    order = torch.randperm(kv.spare_block).tolist()
    starts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum([count for count, _ in lengths])))
    contexts = np.array([context for _, context in lengths], dtype=np.int32)
    tables = np.full((len(lengths), -(-int(contexts.max()) // size)), kv.spare_block, dtype=np.int32)
    positions: list[int] = []
    cells: list[int] = []
    for row, (count, context) in enumerate(lengths):
        blocks = [order.pop() for _ in range(-(-context // size))]
        tables[row, : len(blocks)] = blocks
        positions += range(context - count, context)
        cells += [blocks[position // size] * size + position % size for position in range(context - count, context)]
    tokens = torch.tensor(positions, device=device)
    return PackedBatch(
        host=HostBatch(starts, contexts, max(count for count, _ in lengths), int(contexts.max())),
        input_ids=torch.zeros_like(tokens),
        positions=tokens,
        kv_cells=torch.tensor(cells, device=device),
        query_start=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(contexts, device=device),
        block_tables=torch.tensor(tables, device=device),
        logit_rows=tokens[:0],
    )


def as_captured(batch: PackedBatch, max_context: int) -> PackedBatch:
    """What a graph is captured with: the same tensors, but the host knows no more than the longest that may come."""
    assert batch.host.max_query == 1
    most = np.full_like(batch.host.context_lens, max_context)
    return replace(batch, host=replace(batch.host, context_lens=most, max_context=max_context))

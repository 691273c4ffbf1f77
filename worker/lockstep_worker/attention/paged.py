"""Attention for GPUs: the project's own kernels over the paged cache.

A batch where each sequence brings one token is one part. Otherwise those that bring one are a part of their own beside
those that bring more, so that decodes beside a long prompt keep the tiles that suit them.

Where a token's numbers may not depend on its batch, every batch is one part, and all have the same tiles.

Nothing is planned from a context's length where every sequence brings one token, and what runs share lies at fixed
addresses: such a run may be captured in a graph and replayed at other lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
from torch import Tensor

from lockstep_worker.attention.batch import HostBatch, PackedBatch
from lockstep_worker.attention.protocol import AttentionOptions, AttentionShape
from lockstep_worker.attention.work import Int32, assign_chunks, assign_singles
from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.inputs.buffers import Buffers
from lockstep_worker.kernels.paged import paged_attention
from lockstep_worker.kernels.paged_arguments import PagedSequences, Partials, Scoring
from lockstep_worker.kernels.paged_tiling import (
    MOST_ROWS,
    Heads,
    Tiling,
    chunk_queries,
    chunk_tiling,
    decode_tiling,
    fixed_tiling,
)
from lockstep_worker.kernels.paged_write import paged_write

_ASSIGNMENTS = 2 * 256
"""Numbers that there is room for at first, two an assignment: how many tokens a run may have is not known here."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Sequences that are attended by the same programs."""

    sequences: PagedSequences
    tiling: Tiling


class PagedBackend:
    """`AttentionBackend` by `kernels.paged`.

    Args:
        kv: the cache, written and read.
        shape: the model's.
        batch_invariant: compute each token bit for bit the same in any batch and any chunk; slower.
    """

    name = "paged"
    is_replayable = True

    def __init__(self, kv: KVCache, shape: AttentionShape, *, batch_invariant: bool = False) -> None:
        keys = kv.keys[0]
        [query_heads] = shape.query_heads
        self._kv = kv
        self._heads = Heads(
            kv_heads=shape.kv_heads,
            group=query_heads // shape.kv_heads,
            head_bytes=triton.next_power_of_2(shape.head_dim) * keys.dtype.itemsize,
            processors=_count_processors(keys.device),
        )
        self._fixed = fixed_tiling(self._heads) if batch_invariant else None
        partial_rows = 0 if batch_invariant else self._heads.most_partial_rows
        self._partials = Partials.allocate(partial_rows, shape.head_dim, keys.device)
        self._inputs = Buffers({"singles": (_ASSIGNMENTS, np.int32), "chunks": (_ASSIGNMENTS, np.int32)}, keys.device)

    @staticmethod
    def serves(kv: KVCache, shape: AttentionShape) -> bool:
        """See `choose.BackendKind`: a GPU, a head size that its tensor cores take, and layers of one shape."""
        keys = kv.keys[0]
        return (
            keys.device.type == "cuda"
            and keys.dtype in {torch.float16, torch.bfloat16, torch.float32}
            and 16 <= shape.head_dim <= 256
            and len(shape.query_heads) == 1
            and max(shape.query_heads) <= MOST_ROWS * shape.kv_heads
        )

    def prepare(self, batch: PackedBatch) -> PagedRun:
        """See `AttentionBackend.prepare`."""
        return PagedRun(self._kv, batch.kv_cells, self._split(batch), self._partials)

    def _split(self, batch: PackedBatch) -> list[_Part]:
        host, heads = batch.host, self._heads
        self._inputs.turn()
        if self._fixed is not None:
            return [_Part(_sequences(batch, self._assign_all(batch, self._fixed.queries)), self._fixed)]
        if host.max_query == 1:
            return [_Part(_sequences(batch, None), decode_tiling(len(host.context_lens), heads))]
        tokens = _count_chunked(host)
        chunks = assign_chunks(host, chunk_queries(tokens, heads))
        parts = [_Part(_sequences(batch, self._upload("chunks", chunks)), chunk_tiling(len(chunks), tokens, heads))]
        singles = assign_singles(host)
        if singles.size:
            tiling = decode_tiling(len(singles), heads)
            parts.append(_Part(_sequences(batch, self._upload("singles", singles)), tiling))
        return parts

    def _upload(self, name: str, assignments_P2: Int32) -> Tensor:
        """Copy assignments to the device; in a batch that is replayed there are none, so their address may change."""
        self._inputs.make_room(name, assignments_P2.size)
        return self._inputs.fill(name, assignments_P2)

    def _assign_all(self, batch: PackedBatch, queries: int) -> Tensor:
        """Assign every token, those of decodes too, so that all batches run one kernel; returns int32 [P, 2]."""
        if batch.host.max_query > 1:
            return self._upload("chunks", assign_chunks(batch.host, queries, fewest=1))
        rows = torch.arange(len(batch.context_lens), dtype=torch.int32, device=batch.context_lens.device)
        return torch.stack((rows, torch.zeros_like(rows)), dim=1)  # on the device: a replay makes its own again


class PagedRun:
    """`AttentionRun` of `PagedBackend`.

    Args:
        kv: the cache.
        cells_T: where the run's keys and values go.
        parts: together all T tokens.
        partials: room for split contexts; parts follow one another on the device, so one is enough.
    """

    def __init__(self, kv: KVCache, cells_T: Tensor, parts: list[_Part], partials: Partials) -> None:
        self._kv = kv
        self._cells_T = cells_T
        self._parts = parts
        self._partials = partials

    def attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, options: AttentionOptions) -> Tensor:
        """See `AttentionRun.attend`."""
        paged_write(self._cells_T, k_TKD, v_TKD, self._kv.keys[layer], self._kv.values[layer])
        return self.read(layer, q_THD, options)

    def read(self, layer: int, q_THD: Tensor, options: AttentionOptions) -> Tensor:
        """See `AttentionRun.read`."""
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        scoring = Scoring(options.scaling, options.sliding_window, options.softcap, options.sinks)
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        for part in self._parts:
            paged_attention(q_THD, keys, values, out_THD, part.sequences, scoring, part.tiling, self._partials)
        return out_THD


def _sequences(batch: PackedBatch, assignments: Tensor | None) -> PagedSequences:
    return PagedSequences(batch.block_tables, batch.context_lens, batch.query_start, assignments)


def _count_chunked(host: HostBatch) -> int:
    """Count the tokens of the sequences that bring several."""
    counts = np.diff(host.query_start)
    return int(counts[counts > 1].sum())


def _count_processors(device: torch.device) -> int:
    """Count the GPU's; Triton's interpreter, which tests run on, is one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1

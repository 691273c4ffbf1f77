"""Attention in plain torch: what CPUs run and what other backends are compared with.

Sequences that bring one token are attended together over padded contexts; a prompt's chunk is attended by itself. To
part the two in a mixed batch takes index tensors from the host, which on an accelerator is a synchronisation a run:
there this backend serves as a reference only.

Shape legend: T packed tokens, R sequences attended together, Q tokens that one brings, C context, H query heads, K KV
heads, G query heads a KV head, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lockstep_worker.attention.batch import PackedBatch
from lockstep_worker.attention.protocol import AttentionOptions, AttentionShape
from lockstep_worker.cache.tensors import KVCache


@dataclass(frozen=True, slots=True)
class _Part:
    """R sequences of Q tokens each, attended in one call."""

    rows: slice | Tensor
    """which of the T tokens these are, R * Q of them"""
    blocks_RM: Tensor
    positions_RQ: Tensor


class SdpaBackend:
    """`AttentionBackend` by `scaled_dot_product_attention`.

    Args:
        kv: the cache, written and read.
        shape: the model's; what it needs of it stands in the cache.
    """

    name = "sdpa"
    is_replayable = False

    def __init__(self, kv: KVCache, shape: AttentionShape) -> None:
        self._kv = kv
        self._scratch = (kv.keys[0].new_empty(0), kv.values[0].new_empty(0))

    @staticmethod
    def serves(kv: KVCache, shape: AttentionShape) -> bool:
        """See `choose.BackendKind`: it is plain torch, so any."""
        return True

    def prepare(self, batch: PackedBatch) -> SdpaRun:
        """See `AttentionBackend.prepare`."""
        parts = _split(batch, self._kv.block_size)
        size = max(part.blocks_RM.numel() for part in parts) * self._kv.keys[0][0].numel()
        if self._scratch[0].numel() < size:
            self._scratch = (self._scratch[0].new_empty(2 * size), self._scratch[1].new_empty(2 * size))
        return SdpaRun(self._kv, batch.kv_cells, parts, self._scratch)


class SdpaRun:
    """`AttentionRun` of `SdpaBackend`.

    Args:
        kv: the cache.
        cells_T: where the run's keys and values go.
        parts: together all T tokens.
        scratch: room for the keys and the values of the largest part, kept across layers and runs, because memory that
            is given back and taken again costs more on a CPU than the attention itself.
    """

    def __init__(self, kv: KVCache, cells_T: Tensor, parts: list[_Part], scratch: tuple[Tensor, Tensor]) -> None:
        self._kv = kv
        self._cells_T = cells_T
        self._parts = parts
        self._scratch = scratch
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, options: AttentionOptions) -> Tensor:
        """See `AttentionRun.attend`."""
        self._kv.write(layer, self._cells_T, k_TKD, v_TKD)
        return self.read(layer, q_THD, options)

    def read(self, layer: int, q_THD: Tensor, options: AttentionOptions) -> Tensor:
        """See `AttentionRun.read`."""
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        for index, part in enumerate(self._parts):
            rows, queries = part.positions_RQ.shape
            q_RQHD = q_THD[part.rows].reshape(rows, queries, *q_THD.shape[1:])
            k_RCKD = _gather(self._kv.keys[layer], part.blocks_RM, self._scratch[0])
            v_RCKD = _gather(self._kv.values[layer], part.blocks_RM, self._scratch[1])
            mask = self._mask(index, options.sliding_window, k_RCKD.shape[1])
            out_THD[part.rows] = _attend_part(q_RQHD, k_RCKD, v_RCKD, mask, options).flatten(0, 1)
        return out_THD

    def _mask(self, index: int, window: int | None, context: int) -> Tensor:
        """Bool [R, 1, 1, Q, C], True where a query may look; the same for all layers with one window."""
        key = (index, window)
        if key not in self._masks:
            last = self._parts[index].positions_RQ[:, :, None]
            position = torch.arange(context, device=last.device)
            allowed = position <= last
            if window is not None:
                allowed &= position > last - window
            self._masks[key] = allowed[:, None, None]
        return self._masks[key]


def _split(batch: PackedBatch, block_size: int) -> list[_Part]:
    """Put the sequences that bring one token into one part, and each other sequence into its own."""
    host = batch.host
    if host.max_query == 1:
        num_blocks = -(-host.max_context // block_size)
        return [_Part(slice(None), batch.block_tables[:, :num_blocks], batch.positions[:, None])]
    starts = host.query_start.tolist()
    contexts = host.context_lens.tolist()
    parts = []
    for index, (start, end) in enumerate(zip(starts, starts[1:], strict=False)):
        if end - start > 1:
            blocks = batch.block_tables[index : index + 1, : -(-contexts[index] // block_size)]
            parts.append(_Part(slice(start, end), blocks, batch.positions[None, start:end]))
    singles = [index for index, (start, end) in enumerate(zip(starts, starts[1:], strict=False)) if end - start == 1]
    if singles:
        rows = torch.tensor([starts[index] for index in singles], device=batch.positions.device)
        longest = max(contexts[index] for index in singles)
        blocks = batch.block_tables[singles, : -(-longest // block_size)]
        parts.append(_Part(rows, blocks, batch.positions[rows][:, None]))
    return parts


def _gather(pool: Tensor, blocks_RM: Tensor, scratch: Tensor) -> Tensor:
    """Copy each sequence's blocks out of the cache into `scratch`; returns [R, C, K, D]."""
    shape = (blocks_RM.numel(), *pool.shape[1:])
    out = scratch[: math.prod(shape)].view(shape)
    torch.index_select(pool, 0, blocks_RM.flatten(), out=out)
    return out.view(len(blocks_RM), -1, *pool.shape[2:])


def _attend_part(q_RQHD: Tensor, k_RCKD: Tensor, v_RCKD: Tensor, mask: Tensor, options: AttentionOptions) -> Tensor:
    """Attend R sequences; returns [R, Q, H, D].

    A KV head's G query heads become G * Q queries of that head, so that keys and values are never repeated.
    """
    rows, queries, heads, size = q_RQHD.shape
    groups = heads // k_RCKD.shape[2]
    q = q_RQHD.reshape(rows, queries, -1, groups, size).permute(0, 2, 3, 1, 4)  # [R, K, G, Q, D]
    k, v = k_RCKD.transpose(1, 2), v_RCKD.transpose(1, 2)  # [R, K, C, D]
    if options.softcap is None and options.sinks is None:
        merged = mask.expand(rows, 1, groups, queries, -1).flatten(2, 3)
        out = scaled_dot_product_attention(q.flatten(2, 3), k, v, attn_mask=merged, scale=options.scaling)
        out = out.view(rows, -1, groups, queries, size)
    else:
        out = _attend_by_scores(q, k[:, :, None], v[:, :, None], mask, options)
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


def _attend_by_scores(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: AttentionOptions) -> Tensor:
    """Attend with soft-capped scores or sinks, which the fused kernel does not know; the softmax is in float32."""
    scores = (q @ k.transpose(-1, -2)).float() * options.scaling  # [R, K, G, Q, C]
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if options.sinks is not None:
        sinks = options.sinks.float().view(q.shape[1], q.shape[2], 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : k.shape[-2]]
    return weights.to(v.dtype) @ v

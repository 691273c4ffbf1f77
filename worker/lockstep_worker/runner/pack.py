"""A plan's rows laid behind one another, as one forward takes them. Numpy on the host; the device gets finished arrays.

Of the rows of `schedule/plan`'s example, with blocks of 16 tokens, T is 348:

    row       3     0 0 0       7 ... 7   5 ... 5
    position  812   45 46 47    0 ... 255 512 ... 599
    logits    x     x  x  x                         x
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep_worker.attention.batch import HostBatch, PackedBatch
from lockstep_worker.inputs.buffers import Buffers
from lockstep_worker.runner.blocks import DeviceBlocks
from lockstep_worker.schedule.plan import Plan, offsets_in_rows
from lockstep_worker.schedule.sequence import Int32, Int64
from lockstep_worker.schedule.slots import SlotTable


@dataclass(frozen=True, slots=True)
class Packed:
    """A plan on its way to the device. R rows draw, the decodes among them first."""

    batch: PackedBatch
    rows: Int32
    """[R]: the slots that draw"""
    draws: Int32
    """[R]: how many tokens each draws"""
    rows_on_device: Tensor
    """int64 [R]"""


class Packer:
    """Packs plans. T tokens, S rows, n draws.

    Args:
        table: where the rows are.
        block_size: tokens of a block.
        max_num_tokens: the most tokens of a plan.
        spare_block: the cache's block that is nobody's.
        blocks: which blocks each slot holds.
        last_token: int64 [slots], on the device: a decode's newest token never leaves it.
    """

    def __init__(
        self,
        table: SlotTable,
        block_size: int,
        max_num_tokens: int,
        *,
        spare_block: int,
        blocks: DeviceBlocks,
        last_token: Tensor,
    ) -> None:
        self._table = table
        self._block_size = block_size
        self._spare_block = spare_block
        self._blocks = blocks
        self._last_token = last_token
        sizes: dict[str, tuple[int, type[np.generic]]] = {
            "known": (max_num_tokens, np.int64),
            "decode_starts": (table.num_slots, np.int64),
            "positions": (max_num_tokens, np.int64),
            "kv_cells": (max_num_tokens, np.int64),
            "query_start": (table.num_slots + 1, np.int32),
            "context_lens": (table.num_slots, np.int32),
            "table_rows": (table.num_slots, np.int64),
            "logit_rows": (max_num_tokens, np.int64),
            "rows": (table.num_slots, np.int64),
        }
        self._buffers = Buffers(sizes, last_token.device)

    def pack(self, plan: Plan) -> Packed:
        """Lay a plan's rows behind one another; one without rows becomes a token that is nobody's."""
        self._buffers.turn()
        drawing = plan.draws > 0
        rows, draws = plan.rows[drawing], plan.draws[drawing]
        on_device = self._buffers.fill("rows", rows)
        batch = self._pack_nobody() if plan.is_empty else self._pack_rows(plan, drawing, on_device)
        return Packed(batch, rows, draws, on_device)

    def _pack_rows(self, plan: Plan, drawing: npt.NDArray[np.bool_], rows_on_device: Tensor) -> PackedBatch:
        table, size, fill = self._table, self._block_size, self._buffers.fill
        ends = np.cumsum(plan.counts, dtype=np.int64)
        query_start = np.concatenate((np.zeros(1, dtype=np.int64), ends))
        owner = np.repeat(np.arange(plan.rows.size), plan.counts)  # [T]
        positions: Int64 = np.arange(query_start[-1]) - query_start[owner] + plan.starts[owner]  # [T]
        slots = plan.rows[owner]  # [T]
        context_lens = plan.starts + plan.counts
        host = HostBatch(query_start, context_lens, int(plan.counts.max()), int(context_lens.max()))
        width = -(-host.max_context // size)
        kv_cells = table.block_table[slots, positions // size].astype(np.int64) * size + positions % size
        newest = self._last_token[rows_on_device[: plan.num_decodes]]
        return PackedBatch(
            host=host,
            input_ids=self._input_ids(plan, newest, query_start, slots, positions),
            positions=fill("positions", positions),
            kv_cells=fill("kv_cells", kv_cells),
            query_start=fill("query_start", query_start),
            context_lens=fill("context_lens", context_lens),
            block_tables=self._blocks.of(fill("table_rows", plan.rows), width),
            logit_rows=fill("logit_rows", _logit_rows(plan, drawing, ends)),
        )

    def _pack_nobody(self) -> PackedBatch:
        """Layers take no batch without tokens, so such a run computes one in the spare block, which nobody reads."""
        fill = self._buffers.fill
        zero, nowhere = np.zeros(1, dtype=np.int64), np.full(1, self._spare_block * self._block_size)
        host = HostBatch(np.array([0, 1]), np.ones(1, dtype=np.int32), max_query=1, max_context=1)
        return PackedBatch(
            host=host,
            input_ids=fill("known", zero),
            positions=fill("positions", zero),
            kv_cells=fill("kv_cells", nowhere),
            query_start=fill("query_start", host.query_start),
            context_lens=fill("context_lens", host.context_lens),
            block_tables=self._blocks.rows[-1:, :1],
            logit_rows=fill("logit_rows", zero[:0]),
        )

    def _input_ids(self, plan: Plan, newest: Tensor, query_start: Int64, slots: Int32, positions: Int64) -> Tensor:
        """Decodes read their newest token on the device; drafts and prompts come from the host."""
        count = plan.num_decodes
        if count == slots.size:
            return newest
        decoded = int(query_start[count])  # tokens of all decodes, drafts included
        known = self._table.tokens[slots[decoded:], positions[decoded:]]
        if decoded == count:
            return torch.cat((newest, self._buffers.fill("known", known)))
        starts = query_start[:count]
        behind = offsets_in_rows(plan.counts[:count])  # 0 is the newest token, 1 the first draft
        drafts = self._table.drafts[slots[:decoded], np.maximum(behind - 1, 0)]
        ids = self._buffers.fill("known", np.concatenate((drafts, known)))
        return ids.index_copy(0, self._buffers.fill("decode_starts", starts), newest)


def _logit_rows(plan: Plan, drawing: npt.NDArray[np.bool_], ends: Int64) -> Int64:
    """Find the packed tokens behind which something is drawn: the last `draws` of each row."""
    ends = ends[drawing]
    if plan.max_draws == 1:
        return ends - 1
    draws = plan.draws[drawing]
    return np.repeat(ends - draws, draws) + offsets_in_rows(draws)

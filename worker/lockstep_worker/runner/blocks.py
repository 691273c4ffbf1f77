"""The device half of the block table: which blocks each slot holds, kept where every run finds it.

A block travels once, when it is granted; a run that grants nothing copies nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lockstep_worker.inputs.buffers import Buffers
from lockstep_worker.inputs.upload import upload
from lockstep_worker.schedule.slots import SlotTable


class DeviceBlocks:
    """Rows of blocks by slot. S slots, M most blocks of a sequence.

    Behind the slots' rows stands that of the spare slot: padded rows of a captured run write to the spare block.

    Args:
        table: where blocks are granted.
        spare_block: the cache's block that is nobody's.
        device: where the runs are.
    """

    def __init__(self, table: SlotTable, spare_block: int, device: torch.device) -> None:
        self._table = table
        shape = (table.num_slots + 1, table.block_table.shape[1])
        self.rows = torch.full(shape, spare_block, dtype=torch.int32, device=device)
        """int32 [S+1, M]; entries beyond a sequence's blocks hold any valid block"""
        self._few = 2 * table.num_slots
        self._inputs = Buffers({"entries": (self._few, np.int64), "blocks": (self._few, np.int32)}, device)

    def take_grants(self) -> None:
        """Write what was granted since the last call, behind all that the device was told before.

        What rows that decode are granted goes by memory that is there; to pin some anew takes longer than a step.
        """
        entries, blocks = self._table.take_grants()
        if not entries.size:
            return
        if entries.size <= self._few:
            self._inputs.turn()
            where, what = self._inputs.fill("entries", entries), self._inputs.fill("blocks", blocks)
        else:
            where, what = upload(entries, self.rows.device), upload(blocks, self.rows.device)
        self.rows.view(-1).index_copy_(0, where, what)

    def of(self, rows_S: Tensor, width: int) -> Tensor:
        """Collect the first blocks of some slots: int32 [S, width]."""
        return self.rows[:, :width].index_select(0, rows_S)

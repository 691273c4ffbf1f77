"""Turn a plan into one forward with sampling behind it, and bring its results back when they are asked for.

Host arrays are packed with numpy and go to the device in one piece each; the tokens of decodes never leave it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep_worker.attention.batch import PackedBatch
from lockstep_worker.model.forward import Model
from lockstep_worker.sampling.columns import upload
from lockstep_worker.sampling.logprobs import TopLogprobs, top_logprobs
from lockstep_worker.sampling.sampler import sample
from lockstep_worker.schedule.scheduler import Plan
from lockstep_worker.schedule.slots import Int32, Int64, SlotTable
from lockstep_worker.schedule.update import RowLogprobs, Sampled


@dataclass(frozen=True, slots=True)
class Launched:
    """A forward in flight. Its tensors may be read after `event` only."""

    rows: Int32
    incarnations: Int64
    tokens: Tensor
    codes: Tensor
    logprobs: tuple[Int32, Int32, TopLogprobs] | None
    """The rows that ask, how many best tokens each asks for, and what was found; None when no row asks."""
    event: torch.cuda.Event | None


class Launcher:
    """Runs plans on the device.

    Args:
        model: the loaded model with its cache.
        table: the slot table whose device columns the sampler writes.
        block_size: tokens of a block.
    """

    def __init__(self, model: Model, table: SlotTable, block_size: int) -> None:
        self._model = model
        self._table = table
        self._block_size = block_size
        self._device = table.device_columns.device

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Start a plan's forward, sampling included. Returns without waiting for the device."""
        self._table.device_columns.flush()
        batch = self._pack(plan)
        logits_nV = self._model.forward(batch)
        rows = plan.rows[plan.samples]
        tokens, codes = sample(
            logits_nV, self._to_device(rows.astype(np.int64)), self._table.device_columns, self._table.needs
        )
        logprobs = self._logprobs(logits_nV, rows, tokens)
        tokens, codes = tokens.to("cpu", non_blocking=True), codes.to("cpu", non_blocking=True)
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return Launched(rows, self._table.incarnation[rows], tokens, codes, logprobs, event)

    def collect(self, launched: Launched) -> Sampled:
        """Wait for a launch and return what it drew."""
        if launched.event is not None:
            launched.event.synchronize()
        logprobs = None
        if launched.logprobs is not None:
            rows, counts, top = launched.logprobs
            logprobs = RowLogprobs(rows, counts, top.drawn.numpy(), top.ids.numpy(), top.values.numpy())
        return Sampled(launched.rows, launched.incarnations, launched.tokens.numpy(), launched.codes.numpy(), logprobs)

    def _logprobs(self, logits_nV: Tensor, rows: Int32, tokens: Tensor) -> tuple[Int32, Int32, TopLogprobs] | None:
        """Work out the logprobs of the rows that ask; which they are the host knows."""
        if not self._table.num_with_logprobs:
            return None
        places = np.flatnonzero(self._table.logprobs[rows] >= 0)
        if not places.size:
            return None
        counts = self._table.logprobs[rows[places]]
        width = min(int(counts.max()), logits_nV.shape[1])
        top = top_logprobs(logits_nV, tokens, self._to_device(places), width)
        return rows[places], counts, top.to_host()

    def _pack(self, plan: Plan) -> PackedBatch:
        """Lay the plan's rows behind one another. T tokens, S rows, M most blocks of a row in the plan."""
        table, size = self._table, self._block_size
        ends = np.cumsum(plan.counts, dtype=np.int64)
        query_start = np.concatenate((np.zeros(1, dtype=np.int64), ends))
        owner = np.repeat(np.arange(plan.rows.size), plan.counts)  # [T]
        positions: Int64 = np.arange(ends[-1]) - query_start[owner] + plan.starts[owner]  # [T]
        slots = plan.rows[owner]  # [T]
        context = plan.starts + plan.counts
        width = -(-int(context.max()) // size)
        slot_mapping = table.block_table[slots, positions // size].astype(np.int64) * size + positions % size
        return PackedBatch(
            input_ids=self._input_ids(plan, slots, positions),
            positions=self._to_device(positions),
            slot_mapping=self._to_device(slot_mapping),
            query_start=self._to_device(query_start.astype(np.int32)),
            context_lens=self._to_device(context.astype(np.int32)),
            block_tables=self._to_device(table.block_table[plan.rows, :width]),
            logit_rows=self._to_device(ends[plan.samples] - 1),
            max_query=int(plan.counts.max()),
            max_context=int(context.max()),
        )

    def _input_ids(self, plan: Plan, slots: Int32, positions: Int64) -> Tensor:
        """Decodes read their newest token on the device; prompts come from the host."""
        count = plan.num_decodes
        newest = self._table.device_columns.last_token[self._to_device(plan.rows[:count].astype(np.int64))]
        if count == slots.size:
            return newest
        known = self._table.tokens[slots[count:], positions[count:]].astype(np.int64)
        return torch.cat((newest, self._to_device(known)))

    def _to_device(self, array: np.ndarray) -> Tensor:
        return upload(array, self._device)

"""Run a plan: one forward with sampling behind it; and bring its tokens back when they are asked for.

`run` never waits for the device, `collect` waits for one run. Forward and sampling are two halves of their own, since a
rank that is no model's last stage has the first one only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep_worker import ranges
from lockstep_worker.model.forward import Model
from lockstep_worker.parallel.topology import ALONE, Topology
from lockstep_worker.runner.marks import Marks, Spent
from lockstep_worker.runner.pack import Packed, Packer
from lockstep_worker.sampling.columns import Columns, upload
from lockstep_worker.sampling.logprobs import TopLogprobs, top_logprobs
from lockstep_worker.sampling.sampler import Drawn, sample, sample_drafted
from lockstep_worker.sampling.verify import Draws
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.sampled import NOTHING_SAMPLED, RowLogprobs, Sampled
from lockstep_worker.schedule.sequence import Int32, Int64
from lockstep_worker.schedule.slots import SlotTable


@dataclass(frozen=True, slots=True)
class AskedLogprobs:
    """The logprobs of the rows that ask."""

    rows: Int32
    counts: Int32
    """How many best tokens each asks for."""
    found: TopLogprobs


@dataclass(frozen=True, slots=True)
class Run:
    """A run in flight, of R rows that draw. Its tensors may be read after its end only."""

    rows: Int32
    incarnations: Int64
    draws: Int32
    drawn: Drawn
    """On its way to the host."""
    logprobs: AskedLogprobs | None
    """None when no row asks."""
    mark: int | None
    """Where it begins and ends; None for one that no device runs."""


class Runner:
    """Runs plans on the device.

    Args:
        model: the loaded model with its cache.
        table: the slot table whose rows are run; the runner keeps the device's half of it.
        block_size: tokens of a block.
        max_num_tokens: the most tokens of a plan.
        topology: this rank's; says whether a run without rows must take part in its peers' forwards.
    """

    def __init__(
        self, model: Model, table: SlotTable, block_size: int, max_num_tokens: int, topology: Topology = ALONE
    ) -> None:
        self.columns = Columns(table.num_slots, model.device, model.vocab_size)
        self._model = model
        self._table = table
        self._runs_together = topology.runs_together
        self._marks = Marks(model.device)
        self._packer = Packer(table, block_size, max_num_tokens, model.spare_block, self.columns.last_token)

    def takes_part(self, plan: Plan) -> bool:
        """Whether a plan is run: it has rows, or peers wait for this rank in the middle of their forwards."""
        return self._runs_together or not plan.is_empty

    @torch.inference_mode()
    def run(self, plan: Plan) -> Run:
        """Start a plan's forward, sampling included; one without rows runs a token that is nobody's and draws nothing.

        Returns without waiting for the device.
        """
        self.columns.admit(self._table.take_newcomers())
        packed = self._packer.pack(plan)
        mark = self._marks.begin()
        logits_nV = self._model.forward(packed.batch)
        with ranges.span("sample"):
            drawn = self._sample(logits_nV, packed, plan.max_draws)
            logprobs = self._logprobs(logits_nV, packed, drawn)
        run = Run(
            rows=packed.rows,
            incarnations=self._table.incarnation[packed.rows],
            draws=packed.draws,
            drawn=drawn.to_host(),
            logprobs=logprobs,
            mark=mark,
        )
        self._marks.end(mark)
        return run

    def collect(self, run: Run) -> Sampled:
        """Wait for a run and return what it drew."""
        if run.mark is not None:
            self._marks.wait(run.mark)  # also for a run that draws nothing: the host packs at most one run ahead
        if not run.rows.size:
            return NOTHING_SAMPLED
        drawn, asked, logprobs = run.drawn, run.logprobs, None
        if asked is not None:
            top = asked.found
            logprobs = RowLogprobs(asked.rows, asked.counts, top.drawn.numpy(), top.ids.numpy(), top.values.numpy())
        return Sampled(
            rows=run.rows,
            incarnations=run.incarnations,
            draws=run.draws,
            tokens=drawn.tokens_RW.numpy(),
            counts=run.draws if drawn.counts is None else drawn.counts.numpy().astype(np.int32),
            codes=drawn.codes.numpy(),
            logprobs=logprobs,
        )

    def spent(self, run: Run) -> Spent | None:
        """Say what a collected run took of the device."""
        return None if run.mark is None else self._marks.read(run.mark)

    def _sample(self, logits_nV: Tensor, packed: Packed, max_draws: int) -> Drawn:
        rows, needs = packed.rows_on_device, self._table.needs
        if max_draws == 1:
            return sample(logits_nV, rows, self.columns, needs)
        laid_out = Draws.lay_out(packed.rows, packed.draws, self._table.drafts[packed.rows], self.columns.device)
        return sample_drafted(logits_nV, rows, laid_out, self.columns, needs)

    def _logprobs(self, logits_nV: Tensor, packed: Packed, drawn: Drawn) -> AskedLogprobs | None:
        """Work out the logprobs of the rows that ask, which bring one token each; which they are the host knows."""
        rows, draws = packed.rows, packed.draws
        if not self._table.num_with_logprobs:
            return None
        asking = np.flatnonzero(self._table.logprobs[rows] >= 0)
        if not asking.size:
            return None
        counts = self._table.logprobs[rows[asking]]
        width = min(int(counts.max()), logits_nV.shape[1])
        of_logits = upload((np.cumsum(draws) - draws)[asking], self.columns.device)
        tokens = drawn.tokens_RW[upload(asking, self.columns.device), 0]
        return AskedLogprobs(rows[asking], counts, top_logprobs(logits_nV[of_logits], tokens, width).to_host())

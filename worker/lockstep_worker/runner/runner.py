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
from lockstep_worker.inputs.upload import upload
from lockstep_worker.model.forward import Model
from lockstep_worker.parallel.topology import ALONE, Topology
from lockstep_worker.runner.blocks import DeviceBlocks
from lockstep_worker.runner.capture import Capture
from lockstep_worker.runner.graphs import DecodeGraphs, Kind, choose_buckets
from lockstep_worker.runner.marks import Marks, Spent
from lockstep_worker.runner.pack import Packed, Packer
from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.logprobs import TopLogprobs, top_logprobs
from lockstep_worker.sampling.sampler import Drawn, sample, sample_drafted
from lockstep_worker.sampling.verify import Draws
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.sampled import NOTHING_SAMPLED, RowLogprobs, Sampled
from lockstep_worker.schedule.sequence import Int32, Int64
from lockstep_worker.schedule.slots import SlotTable

_NOBODY: Int64 = np.empty(0, dtype=np.int64)


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
    eager_reason: str
    """Why it is no replay of a captured program, as `eager_steps_total` counts it; empty when it is."""
    padded_rows: int = 0
    """Rows that a replay computed for nobody."""


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
        self._blocks = DeviceBlocks(table, model.spare_block, model.device)
        self._packer = Packer(
            table,
            block_size,
            max_num_tokens,
            spare_block=model.spare_block,
            blocks=self._blocks,
            last_token=self.columns.last_token,
        )
        self._graphs: DecodeGraphs | None = None

    def use_graphs(self, capture: Capture, max_model_len: int) -> DecodeGraphs:
        """Have decodes run as captured programs from here on.

        Args:
            capture: what makes a program replayable.
            max_model_len: the longest context that may come.
        """
        buckets = choose_buckets(self._table.num_slots)
        self._graphs = DecodeGraphs(self._model, self.columns, self._blocks, max_model_len, buckets, capture)
        return self._graphs

    def run_eager_only(self) -> None:
        """Have decodes run eager from here on; what was captured is given back."""
        self._graphs = None

    def takes_part(self, plan: Plan) -> bool:
        """Whether a plan is run: it has rows, or peers wait for this rank in the middle of their forwards."""
        return self._runs_together or not plan.is_empty

    @torch.inference_mode()
    def run(self, plan: Plan) -> Run:
        """Start a plan's forward, sampling included; one without rows runs a token that is nobody's and draws nothing.

        Returns without waiting for the device.
        """
        self.columns.admit(self._table.take_newcomers())
        self._blocks.take_grants()
        graphs = self._graphs
        if graphs is None:
            return self._run_eager(plan, "no_graphs")
        asking = self._asking(plan.rows)
        chosen = graphs.choose(plan, self._table.needs, keep_logits=asking.size > 0)
        if isinstance(chosen, str):
            return self._run_eager(plan, chosen)
        return self._replay(plan, graphs, chosen, asking)

    def _run_eager(self, plan: Plan, reason: str) -> Run:
        packed = self._packer.pack(plan)
        mark = self._marks.begin()
        logits_nV = self._model.forward(packed.batch)
        with ranges.span("sample"):
            drawn = self._sample(logits_nV, packed, plan.max_draws)
        asking = self._asking(packed.rows)
        logprobs = None
        if asking.size:
            of_logits = (np.cumsum(packed.draws) - packed.draws)[asking]
            tokens = drawn.tokens_RW[upload(asking, self.columns.device), 0]
            logprobs = self._logprobs(logits_nV, of_logits, tokens, packed.rows[asking])
        run = Run(
            rows=packed.rows,
            incarnations=self._table.incarnation[packed.rows],
            draws=packed.draws,
            drawn=drawn.to_host(),
            logprobs=logprobs,
            mark=mark,
            eager_reason=reason,
        )
        self._marks.end(mark)
        return run

    def _replay(self, plan: Plan, graphs: DecodeGraphs, kind: Kind, asking: Int64) -> Run:
        mark = self._marks.begin()
        replayed, logprobs = graphs.replay(plan.rows, kind), None
        if replayed.logits is not None:
            tokens = self.columns.last_token[upload(plan.rows[asking].astype(np.int64), self.columns.device)]
            logprobs = self._logprobs(replayed.logits, asking, tokens, plan.rows[asking])
        self._marks.end(mark)
        return Run(
            rows=plan.rows,
            incarnations=self._table.incarnation[plan.rows],
            draws=plan.draws,
            drawn=replayed.drawn,
            logprobs=logprobs,
            mark=mark,
            eager_reason="",
            padded_rows=replayed.padded_rows,
        )

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
            tokens=drawn.tokens_RW.numpy().astype(np.int64),
            counts=run.draws if drawn.counts is None else drawn.counts.numpy().astype(np.int32),
            codes=drawn.codes.numpy().astype(np.uint8),
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

    def _asking(self, rows: Int32) -> Int64:
        """Find which of a run's rows want logprobs; they bring one token each, and the host knows them."""
        if not self._table.num_with_logprobs:
            return _NOBODY
        return np.flatnonzero(self._table.logprobs[rows] >= 0)

    def _logprobs(self, logits_nV: Tensor, of_logits: Int64, tokens: Tensor, rows: Int32) -> AskedLogprobs:
        """Work out the logprobs of the rows that ask.

        Args:
            logits_nV: of the whole run.
            of_logits: [m], which of the n are theirs.
            tokens: int64 [m], what they drew.
            rows: [m], their slots.
        """
        counts = self._table.logprobs[rows]
        width = min(int(counts.max()), logits_nV.shape[1])
        asked = logits_nV[upload(of_logits, self.columns.device)]
        return AskedLogprobs(rows, counts, top_logprobs(asked, tokens, width).to_host())

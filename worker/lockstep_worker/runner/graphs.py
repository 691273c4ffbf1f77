"""Decodes as captured programs: one CUDA graph for each bucket of rows and each set of what their draws need.

A program reads and writes the device's half of the slot table and nothing of the host's: it gathers its rows, runs the
model, samples, appends and finishes. So from one decode to the next nothing is copied in unless the rows changed or a
block was granted, and a few bytes a row are copied out. Source of the idea: the device-side loop that vLLM's and
TensorRT-LLM's graph runners stop short of, since they build each step's inputs on the host.

An example, of 3 rows in the bucket of 4; S is the number of slots, and slot S is nobody's:

    rows        7 0 3 S
    newest      the token in each slot's `last_token`, computed at position length - 1
    out         one row of token and finish code a row; the spare slot's means nothing

Graphs share one memory pool, since one run follows another, and are captured from the largest to the smallest.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lockstep_worker.attention.batch import HostBatch, PackedBatch
from lockstep_worker.inputs.buffers import Buffers
from lockstep_worker.kernels.gather import Gathered, gather, gather_reference
from lockstep_worker.model.forward import Model
from lockstep_worker.runner.blocks import DeviceBlocks
from lockstep_worker.runner.capture import CannotCaptureError, Capture, Program
from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.device import draw_input
from lockstep_worker.sampling.sampler import Drawn, sample, take_best
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.sequence import Int32
from lockstep_worker.wire.params import Needs

log = logging.getLogger(__name__)

BUCKETS = (1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 512, 32), *range(512, 1025, 64))
"""Sizes that decodes are padded to. Attention costs by the row, so that from 64 rows on at most a fifth is padding."""

_IN_HEAD = (Needs(), Needs(sampling=True))
"""What draws may ask for where the model's head makes them: nothing that must see all logits."""

_CHEAP = Needs(sampling=True, min_p=True, min_tokens=True, bias=True)
"""What all other draws have done to their logits, asked for or not, so that kinds of programs are few: it costs little,
and who does not ask passes unchanged. Truncation sorts and penalties read a table, so those are kinds of their own."""


def choose_buckets(max_rows: int) -> tuple[int, ...]:
    """Choose the buckets of a rank that runs at most so many rows: those below, and one of just that size."""
    return (*(size for size in BUCKETS if size < max_rows), max_rows)


@dataclass(frozen=True, slots=True)
class Kind:
    """What one program is captured for."""

    bucket: int
    needs: Needs
    keeps_logits: bool
    count_rows: int
    """Rows of the table of token counts, which grows: a graph holds the table that it was captured with."""


class _Output:
    """What a program wrote last. A replay writes the tensor of the capture, which comes last of those that it makes."""

    tensor: Tensor
    """int32 [bucket, 2]: a row's token and finish code"""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay brings, of R rows; V vocabulary."""

    drawn: Drawn
    """On its way to the host, into memory that the run after the next writes again."""
    logits: Tensor | None
    """float32 [R, V] on the device, where they were asked for; the next run writes them again."""
    padded_rows: int
    """Rows that were computed for nobody."""


class DecodeGraphs:
    """The programs of one rank, and the memory that they read and write. B rows of the largest bucket, V vocabulary.

    Args:
        model: with its cache.
        columns: the device half of the slot table.
        blocks: which blocks each slot holds.
        max_model_len: the longest context that may ever come.
        buckets: the sizes that runs are padded to, ascending.
        capture: what makes a program replayable.
    """

    def __init__(
        self,
        model: Model,
        columns: Columns,
        blocks: DeviceBlocks,
        max_model_len: int,
        buckets: tuple[int, ...],
        capture: Capture,
    ) -> None:
        self.buckets = buckets
        self._model = model
        model.prepare_decodes(buckets[-1])
        self._columns = columns
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._capture = capture
        self._programs: dict[Kind, tuple[Program, _Output]] = {}
        self._failed: set[Kind] = set()
        most = buckets[-1]
        self._bucket_of = np.searchsorted(buckets, np.arange(most + 1))
        self._inputs = Buffers({"rows": (most, np.int64)}, columns.device)
        self._padded = np.full(most, columns.spare_slot, dtype=np.int64)
        self._rows = self._inputs.fill("rows", self._padded)
        self._current: tuple[int, bytes] = (most, b"")
        """The bucket and the rows that the device was told last."""
        self._starts = torch.arange(most + 1, device=columns.device)
        self._starts_int32 = self._starts.int()
        self._newest = Gathered.allocate(most, blocks.rows.shape[1], columns.device)
        self._hosts = [_allocate_on_host(most, columns.device) for _ in range(2)]  # as `inputs/buffers` has, and why
        self._turn = 0
        self._logits: Tensor | None = None

    def choose(self, plan: Plan, needs: Needs, *, keep_logits: bool) -> Kind | str:
        """Choose the program for a plan, or say why it cannot be a replay, as `eager_steps_total` counts it.

        Captures the program when it is the first of its kind, before anything of the run is under way.

        Args:
            plan: what is to run.
            needs: what some row's draw asks for.
            keep_logits: the replay is to hand back the logits.
        """
        if plan.is_empty:
            return "empty"
        if plan.num_decodes < plan.rows.size:
            return "prefill"
        if plan.max_draws > 1:
            return "drafts"
        if plan.rows.size > self.buckets[-1]:
            return "rows"
        kind = self._kind_of(self.buckets[self._bucket_of[plan.rows.size]], needs, keep_logits)
        try:
            if kind not in self._programs:
                self._prepare(kind)
        except CannotCaptureError as error:
            if kind not in self._failed:
                log.warning("decodes of up to %d rows with %s run eager: %s", kind.bucket, needs, error)
                self._failed.add(kind)
            return "uncaptured"
        return kind

    def replay(self, rows: Int32, kind: Kind) -> Replayed:
        """Run a decode of these slots.

        Args:
            rows: [R], a plan's.
            kind: what `choose` chose for it.
        """
        program, out = self._programs[kind]
        self._tell_rows(kind.bucket, rows)
        program()
        self._turn ^= 1
        host = self._hosts[self._turn][: rows.size]
        host.copy_(out.tensor[: rows.size], non_blocking=True)
        logits = self._logits[: rows.size] if self._logits is not None and kind.keeps_logits else None
        return Replayed(Drawn(host[:, :1], None, host[:, 1]), logits, kind.bucket - rows.size)

    def prepare(self, bucket: int, needs: Needs) -> None:
        """Capture the program for a bucket and what its draws need.

        Raises:
            CannotCaptureError: see `CudaCapture`.
        """
        self._prepare(self._kind_of(bucket, needs, keeps_logits=False))

    def _kind_of(self, bucket: int, needs: Needs, keeps_logits: bool) -> Kind:
        if needs not in _IN_HEAD:
            needs = replace(_CHEAP, truncation=needs.truncation, penalties=needs.penalties)
        return Kind(bucket, needs, keeps_logits, self._columns.counts.num_rows if needs.penalties else 0)

    def _prepare(self, kind: Kind) -> None:
        if kind in self._failed:
            raise CannotCaptureError("it could not be captured before")
        if kind.keeps_logits and self._logits is None:
            self._logits = self._allocate_logits()
        # A capture runs the program: on nobody's rows. It waits for the device too, so that the rows which this run is
        # told next may stand where those of the run in flight stood.
        self._tell_rows(kind.bucket, np.empty(0, dtype=np.int32))
        self._drop_outgrown(kind)
        out = _Output()

        def program() -> None:
            out.tensor = self._decode(kind)

        self._programs[kind] = self._capture(program), out

    def _allocate_logits(self) -> Tensor:
        shape = (self.buckets[-1], self._model.vocab_size)
        try:
            return torch.zeros(shape, dtype=torch.float32, device=self._columns.device)
        except torch.cuda.OutOfMemoryError as error:
            raise CannotCaptureError("there is no memory for its logits") from error

    def _drop_outgrown(self, kind: Kind) -> None:
        """Forget the programs that hold a table of token counts of before it grew; it never shrinks."""
        if kind.needs.penalties:
            outgrown = [one for one in self._programs if one.needs.penalties and one.count_rows < kind.count_rows]
            for one in outgrown:
                del self._programs[one]

    def _tell_rows(self, bucket: int, rows: Int32) -> None:
        told = (bucket, rows.tobytes())
        if told == self._current:
            return
        self._current = told
        self._padded[: rows.size] = rows
        self._padded[rows.size : bucket] = self._columns.spare_slot
        self._inputs.turn()
        self._inputs.fill("rows", self._padded[:bucket])

    def _decode(self, kind: Kind) -> Tensor:
        """The program: all that a decode of one bucket does, in tensors at fixed addresses; see `_Output`."""
        rows = self._rows[: kind.bucket]
        batch = self._gather(rows)
        if self._model.finds_best and kind.needs in _IN_HEAD and not kind.keeps_logits:
            draw = draw_input(rows, self._columns) if kind.needs.sampling else None
            drawn = take_best(self._model.decode_best(batch, draw), rows, self._columns)
        else:
            logits = self._model.decode(batch)
            if kind.keeps_logits:
                assert self._logits is not None
                self._logits[: kind.bucket].copy_(logits)
            drawn = sample(logits, rows, self._columns, kind.needs)
        return torch.stack((drawn.tokens_RW[:, 0], drawn.codes), dim=1).int() if drawn.pairs is None else drawn.pairs

    def _gather(self, rows: Tensor) -> PackedBatch:
        """Lay out the newest token of each row, from the device's own columns."""
        count, columns, size = rows.shape[0], self._columns, self._model.block_size
        newest = self._newest.first(count)
        run = gather if columns.in_kernels else gather_reference
        run(rows, columns.last_token, columns.length, self._blocks.rows, size, newest)
        return PackedBatch(
            host=HostBatch(
                query_start=np.arange(count + 1),
                context_lens=np.full(count, self._max_model_len, dtype=np.int32),
                max_query=1,
                max_context=self._max_model_len,
            ),
            input_ids=newest.tokens,
            positions=newest.positions,
            kv_cells=newest.cells,
            query_start=self._starts_int32[: count + 1],
            context_lens=newest.context_lens,
            block_tables=newest.block_tables,
            logit_rows=self._starts[:count],
        )


def _allocate_on_host(rows: int, device: torch.device) -> Tensor:
    """Allocate what a program's output is copied to; pinned where the copy is one between devices."""
    host = torch.zeros((rows, 2), dtype=torch.int32)
    return host.pin_memory() if device.type == "cuda" else host

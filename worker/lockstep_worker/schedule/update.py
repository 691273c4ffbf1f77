"""`update_requests`: what a step's tokens do to the slot table.

The batched path costs a few vectorised writes whatever the batch, and hands back only the rows that ended. The
per-request path is the reference; rows whose parameters the batched path does not cover take it, and cost the others
nothing. Source of the idea: the single-beam, single-step fast paths of TensorRT-LLM's samplers, here by partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lockstep_worker.sampling.finish import finish_code
from lockstep_worker.schedule.slots import Int32, Int64, SlotTable
from lockstep_worker.wire.messages import Logprobs

Codes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """The logprobs of those of a launch's rows that ask: arrays of one row each, K best tokens wide."""

    rows: Int32
    counts: Int32
    """How many of the best tokens each row asks for."""
    drawn: Float32
    ids: Int32
    values: Float32

    def of(self, rows: Int32) -> RowLogprobs | None:
        """Keep these rows; None when none of them asks."""
        keep = np.isin(self.rows, rows)
        if not keep.any():
            return None
        return RowLogprobs(self.rows[keep], self.counts[keep], self.drawn[keep], self.ids[keep], self.values[keep])

    def pack(self, rows: Int32) -> Logprobs:
        """Write them as they travel; `rows` are those of the whole message, all of these among them."""
        place_of = {row: place for place, row in enumerate(rows.tolist())}
        asked = np.arange(self.ids.shape[1]) < self.counts[:, None]
        return Logprobs(
            np.array([place_of[row] for row in self.rows.tolist()], dtype="<i4").tobytes(),
            self.drawn.astype("<f4").tobytes(),
            asked.sum(axis=1).astype("u1").tobytes(),
            self.ids[asked].astype("<i4").tobytes(),
            self.values[asked].astype("<f4").tobytes(),
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one launch drew, on the host: arrays of equal length, a row's slot and its owner's incarnation first."""

    rows: Int32
    incarnations: Int64
    tokens: Int64
    codes: Codes
    logprobs: RowLogprobs | None = None
    """None when no row asks."""

    def take(self, mask: npt.NDArray[np.bool_]) -> Sampled:
        """Keep the rows where `mask` is True."""
        rows = self.rows[mask]
        logprobs = None if self.logprobs is None else self.logprobs.of(rows)
        return Sampled(rows, self.incarnations[mask], self.tokens[mask], self.codes[mask], logprobs)


def live_rows(table: SlotTable, sampled: Sampled) -> Sampled:
    """Drop rows whose request ended, was cancelled or was preempted after the launch."""
    live = table.incarnation.take(sampled.rows) == sampled.incarnations
    return sampled if live.all() else sampled.take(live)


def update_requests(
    table: SlotTable, sampled: Sampled, mark: Callable[[str], None] = lambda path: None
) -> tuple[Sampled, int]:
    """Apply a step's live tokens, each row by the path that it is eligible for.

    Args:
        table: where the rows are.
        sampled: the step's live tokens.
        mark: told the path after each piece of work, for who keeps time. A path without rows is not told of; parting
            the rows and joining them again is the per-request path's work.

    Returns:
        The rows with their final codes, batched ones first, and how many went the batched way.
    """
    slow = table.ineligible[sampled.rows] if table.num_ineligible else None
    if slow is None or not slow.any():
        update_batched(table, sampled)
        if sampled.rows.size:
            mark("batched")
        return sampled, sampled.rows.size
    fast_part, slow_part = sampled.take(~slow), sampled.take(slow)
    mark("per_request")
    if fast_part.rows.size:
        update_batched(table, fast_part)
        mark("batched")
    updated = _join(fast_part, update_per_request(table, slow_part))
    mark("per_request")
    return updated, fast_part.rows.size


def update_batched(table: SlotTable, sampled: Sampled) -> Sampled:
    """Append every row's token in one write each column; the device's codes stand."""
    rows = sampled.rows.astype(np.intp)  # once: numpy would cast them again for each column
    length = table.length.take(rows)
    table.tokens.reshape(-1)[rows * table.tokens.shape[1] + length] = sampled.tokens
    table.length[rows] = length + 1
    table.in_flight[rows] -= 1
    return sampled


def update_per_request(table: SlotTable, sampled: Sampled) -> Sampled:
    """Append row by row and decide each finish on the host, from the request's own parameters."""
    codes = sampled.codes.copy()
    for index, (slot, token) in enumerate(zip(sampled.rows.tolist(), sampled.tokens.tolist(), strict=True)):
        sequence = table.sequence(slot)
        length = int(table.length[slot])
        table.tokens[slot, length] = token
        table.length[slot] = length + 1
        table.in_flight[slot] -= 1
        codes[index] = finish_code(token, length + 1, sequence.limit, sequence.params)
    return replace(sampled, codes=codes)


def _join(first: Sampled, second: Sampled) -> Sampled:
    """Put the per-request rows behind the batched ones, none of which has logprobs."""
    return Sampled(
        np.concatenate((first.rows, second.rows)),
        np.concatenate((first.incarnations, second.incarnations)),
        np.concatenate((first.tokens, second.tokens)),
        np.concatenate((first.codes, second.codes)),
        second.logprobs,
    )

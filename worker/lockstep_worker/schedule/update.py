"""`update_requests`: what a step's tokens do to the slot table.

The batched path costs a few vectorised writes whatever the batch, and hands back only the rows that ended. The
per-request path is the reference; rows whose parameters the batched path does not cover take it, and cost the others
nothing. Source of the idea: the single-beam, single-step fast paths of TensorRT-LLM's samplers, here by partition.

What an update does to a row that brings `count` of `draws` tokens:

    length += count              the tokens are known
    in_flight -= draws           nothing of this run is outstanding
    computed -= draws - count    what was computed for wrong drafts is none of its positions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lockstep_worker.schedule.finish import finish_code
from lockstep_worker.schedule.sampled import Sampled
from lockstep_worker.schedule.slots import SlotTable


def live_rows(table: SlotTable, sampled: Sampled) -> Sampled:
    """Drop rows whose request ended, was cancelled or was preempted after the run began."""
    live = table.incarnation.take(sampled.rows) == sampled.incarnations
    return sampled if np.count_nonzero(live) == live.size else sampled.take(live)


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
    """Append every row's tokens in one write each column; the device's codes stand."""
    rows = sampled.rows.astype(np.intp)  # once: numpy would cast them again for each column
    length = table.length.take(rows)
    if sampled.is_single:
        tokens = sampled.tokens[:, 0].astype(
            np.int32
        )  # by itself: cast within the write below it takes three times as long
        table.tokens.reshape(-1)[rows * table.tokens.shape[1] + length] = tokens
        table.length[rows] = length + 1
        table.in_flight[rows] -= 1
        return sampled
    offsets = np.arange(sampled.tokens.shape[1])
    brought = offsets < sampled.counts[:, None]
    cells = (rows * table.tokens.shape[1] + length)[:, None] + offsets
    table.tokens.reshape(-1)[cells[brought]] = sampled.tokens[brought]
    table.length[rows] = length + sampled.counts
    table.in_flight[rows] -= sampled.draws
    table.computed[rows] -= sampled.draws - sampled.counts
    return sampled


def update_per_request(table: SlotTable, sampled: Sampled) -> Sampled:
    """Append row by row and decide each finish on the host, from the request's own parameters."""
    codes, counts = np.zeros_like(sampled.codes), sampled.counts.copy()
    columns = (sampled.rows, sampled.counts, sampled.tokens)
    for index, (slot, brought, tokens) in enumerate(zip(*(one.tolist() for one in columns), strict=True)):
        sequence = table.sequence(slot)
        limit, params = sequence.limit, sequence.params
        length = start = table.length.item(slot)
        for token in tokens[:brought]:
            table.tokens[slot, length] = token
            length += 1
            if code := finish_code(token, length, limit, params):
                codes[index] = code
                counts[index] = length - start
                break
        table.length[slot] = length
    table.in_flight[sampled.rows] -= sampled.draws
    table.computed[sampled.rows] -= sampled.draws - counts
    return replace(sampled, codes=codes, counts=counts)


def _join(first: Sampled, second: Sampled) -> Sampled:
    """Put the per-request rows behind the batched ones, none of which has logprobs."""
    return Sampled(
        rows=np.concatenate((first.rows, second.rows)),
        incarnations=np.concatenate((first.incarnations, second.incarnations)),
        draws=np.concatenate((first.draws, second.draws)),
        tokens=np.concatenate((first.tokens, second.tokens)),
        counts=np.concatenate((first.counts, second.counts)),
        codes=np.concatenate((first.codes, second.codes)),
        logprobs=second.logprobs,
    )

"""`bench update`: what a step's update costs the host, batched and per request, on the same rows."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep_worker.bench.machine import describe_machine, summarize
from lockstep_worker.schedule.sampled import Sampled
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.schedule.update import live_rows, update_per_request, update_requests
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams

PROMPT_LENGTH = 128
MAX_LENGTH = 2048
BLOCK_SIZE = 16
END_ID = 2
TOKEN = 7


def measure_update(batch: int, repetitions: int) -> dict[str, Any]:
    """Time both paths for a step in which no row ends.

    The batched time is that of everything the loop does for it: dropping rows of former owners, the partition, and
    the write.

    Args:
        batch: rows of the step.
        repetitions: timed calls of the batched path; the per-request path gets a tenth.
    """
    table, sampled = _fill(batch)
    batched = _time(table, lambda: update_requests(table, live_rows(table, sampled)), repetitions)
    slow = _time(table, lambda: update_per_request(table, live_rows(table, sampled)), max(repetitions // 10, 10))
    return {
        "benchmark": "update",
        "batch": batch,
        "batched_us": summarize(batched),
        "per_request_us": summarize(slow),
        "ratio": round(float(np.median(slow) / np.median(batched)), 1),
        "ratio_of_minima": round(min(slow) / min(batched), 1),
        "machine": describe_machine(),
    }


def _fill(batch: int) -> tuple[SlotTable, Sampled]:
    """A table of running requests and one step's tokens for all of them, in the order of their admission."""
    table = SlotTable(batch, MAX_LENGTH, MAX_LENGTH // BLOCK_SIZE)
    params = SamplingParams(max_tokens=MAX_LENGTH, temperature=0.8, top_p=0.9, end_ids=(END_ID,))
    for handle in range(1, batch + 1):
        table.admit(Sequence.of(NewRequest(handle, [1] * PROMPT_LENGTH, params), MAX_LENGTH))
    rows = np.random.default_rng(1).permutation(batch).astype(np.int32)
    one, tokens = np.ones(batch, dtype=np.int32), np.full((batch, 1), TOKEN, dtype=np.int64)
    return table, Sampled(rows, table.incarnation[rows], one, tokens, one, np.zeros(batch, dtype=np.uint8))


def _time(table: SlotTable, update: Callable[[], object], repetitions: int) -> list[float]:
    """Time calls of an update, each on the table as it was before the first."""
    seconds = []
    gc.collect()
    gc.disable()  # as in a rank, where what lives is frozen and a step makes no cycles
    try:
        for _ in range(repetitions):
            table.length[:] = PROMPT_LENGTH
            table.in_flight[:] = 1
            start = time.perf_counter()
            update()
            seconds.append(time.perf_counter() - start)
    finally:
        gc.enable()
    return seconds

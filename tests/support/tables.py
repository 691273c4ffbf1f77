"""Slot tables filled at random, as a running group would have filled them, and a full look at what a table holds."""

from __future__ import annotations

import random

import numpy as np
import torch

from lockstep_worker.executor.slots import Int32, Sequence, SlotTable
from lockstep_worker.executor.update import RowLogprobs, Sampled
from lockstep_worker.request import SamplingParams
from lockstep_worker.sampling.finish import finish_codes

CPU = torch.device("cpu")
VOCAB = 12  # small, so that end ids and stop ids are drawn often
MAX_LENGTH = 24


def random_params(rng: random.Random) -> SamplingParams:
    def ids(most: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(VOCAB), rng.randrange(most + 1)))

    return SamplingParams(
        max_tokens=rng.randrange(1, 8),
        temperature=rng.choice([0.0, 0.0, 0.7]),
        top_p=rng.choice([1.0, 0.9]),
        min_tokens=rng.choice([0, 0, 3]),
        end_ids=ids(2),
        stop_token_ids=ids(2) if rng.random() < 0.4 else (),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.0, -0.5]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
        logit_bias=((rng.randrange(VOCAB), 2.5),) if rng.random() < 0.3 else (),
        logprobs=rng.choice([-1, -1, -1, 0, 3]),
    )


def random_table(rng: random.Random, num_slots: int) -> SlotTable:
    """A table with some rows in use, each with a token or two in flight."""
    table = SlotTable(num_slots, MAX_LENGTH, 4, CPU, VOCAB)
    for handle in range(1, rng.randrange(1, num_slots + 1) + 1):
        place_newcomer(rng, table, handle)
    return table


def place_newcomer(rng: random.Random, table: SlotTable, handle: int) -> None:
    params = random_params(rng)
    prompt = np.array([rng.randrange(VOCAB) for _ in range(rng.randrange(1, MAX_LENGTH - 8))], dtype=np.int32)
    limit = min(prompt.size + params.max_tokens, MAX_LENGTH)
    slot = table.place(Sequence(handle, params, prompt.size, limit, prompt))
    table.in_flight[slot] = rng.choice([1, 2])


def draw_step(rng: random.Random, table: SlotTable) -> Sampled:
    """What a launch of some of the rows brings back, with the finish codes that the device gives it."""
    used = [slot for slot, sequence in enumerate(table.sequences) if sequence is not None]
    rows = rng.sample(used, rng.randrange(len(used) + 1))
    tokens = [rng.randrange(VOCAB) for _ in rows]
    device_rows, device_tokens = torch.tensor(rows, dtype=torch.int64), torch.tensor(tokens, dtype=torch.int64)
    table.device_columns.flush()
    table.device_columns.length[device_rows] += 1
    codes = finish_codes(device_tokens, device_rows, table.device_columns).numpy()
    slots = np.array(rows, dtype=np.int32)
    return Sampled(
        slots, table.incarnation[slots], np.array(tokens, dtype=np.int64), codes, draw_logprobs(rng, table, slots)
    )


def draw_logprobs(rng: random.Random, table: SlotTable, slots: Int32) -> RowLogprobs | None:
    """Any numbers for the rows that ask, no two alike."""
    asking = slots[table.logprobs[slots] >= 0]
    if not asking.size:
        return None
    values = np.array([[-rng.random() for _ in range(4)] for _ in asking], dtype=np.float32)
    ids = np.array([rng.sample(range(VOCAB), 3) for _ in asking], dtype=np.int32)
    return RowLogprobs(asking, table.logprobs[asking], values[:, 0], ids, values[:, 1:])


def snapshot(table: SlotTable) -> dict[str, list[object]]:
    """Every host column that an update may touch or must leave alone."""
    names = ["tokens", "length", "in_flight", "computed", "limit", "incarnation", "handle", "num_blocks", "ineligible"]
    names += ["logprobs"]
    return {name: getattr(table, name).tolist() for name in names}


def results(sampled: Sampled) -> dict[int, tuple[int, int, int]]:
    """What an update handed back, by row, whatever the order."""
    columns = (sampled.incarnations.tolist(), sampled.tokens.tolist(), sampled.codes.tolist())
    by_row = dict(zip(sampled.rows.tolist(), zip(*columns, strict=True), strict=True))
    assert len(by_row) == sampled.rows.size, "a row came back twice"
    return by_row


def logprob_results(sampled: Sampled) -> dict[int, tuple[float, list[int], list[float]]]:
    """The logprobs that an update handed back as the frontend reads them, by row."""
    if sampled.logprobs is None:
        return {}
    by_place = sampled.logprobs.pack(sampled.rows).unpack()
    return {int(sampled.rows[place]): entry for place, entry in by_place.items()}

"""Slot tables filled at random, as a running group would have filled them, and a full look at what a table holds."""

from __future__ import annotations

import random

import numpy as np
import torch

from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.finish import finish_codes
from lockstep_worker.schedule.sampled import RowLogprobs, Sampled
from lockstep_worker.schedule.sequence import Int32, Sequence
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.params import SamplingParams

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
    table = SlotTable(num_slots, MAX_LENGTH, 4)
    for handle in range(1, rng.randrange(1, num_slots + 1) + 1):
        admit_newcomer(rng, table, handle)
    return table


def admit_newcomer(rng: random.Random, table: SlotTable, handle: int) -> None:
    params = random_params(rng)
    prompt = np.array([rng.randrange(VOCAB) for _ in range(rng.randrange(1, MAX_LENGTH - 8))], dtype=np.int32)
    limit = min(prompt.size + params.max_tokens, MAX_LENGTH)
    slot = table.admit(Sequence(handle, params, prompt.size, limit, prompt))
    table.in_flight[slot] = rng.choice([1, 2])


def draw_step(rng: random.Random, table: SlotTable, most: int = 1) -> Sampled:
    """What a run of some of the rows brings back, with the finish codes that the device gives it.

    A row brings up to `most` tokens, as after drafts; one that wants logprobs brings one.
    """
    used = [slot for slot, sequence in enumerate(table.sequences) if sequence is not None]
    slots = np.array(rng.sample(used, rng.randrange(len(used) + 1)), dtype=np.int32)
    room = np.minimum(np.where(table.logprobs[slots] >= 0, 1, most), table.limit[slots] - table.length[slots])
    draws = np.array([rng.randint(1, max(int(limit), 1)) for limit in room], dtype=np.int32)
    tokens = np.array([[rng.randrange(VOCAB) for _ in range(most)] for _ in slots], dtype=np.int64).reshape(-1, most)
    codes = find_codes(table, slots, tokens)
    kept = [rng.randint(1, draw) for draw in draws.tolist()]  # the drafts that are right, and the draw behind them
    ends = [np.flatnonzero(row).min(initial=most - 1) + 1 for row in codes]
    counts = np.minimum(np.array(kept, dtype=np.int32), np.array(ends, dtype=np.int32))
    last = codes[np.arange(slots.size), counts - 1]
    return Sampled(slots, table.incarnation[slots], draws, tokens, counts, last, draw_logprobs(rng, table, slots))


def find_codes(table: SlotTable, slots: Int32, tokens: np.ndarray) -> np.ndarray:
    """Ask the device's half why each token would end its row: uint8 like `tokens`."""
    columns = Columns(table.num_slots, CPU, VOCAB)
    columns.admit({slot: one for slot, one in enumerate(table.sequences) if one is not None})
    lengths = table.length[slots][:, None] + np.arange(1, tokens.shape[1] + 1)
    rows = torch.from_numpy(slots.astype(np.int64).repeat(tokens.shape[1]))
    drawn, after = torch.from_numpy(tokens.reshape(-1)), torch.from_numpy(lengths.reshape(-1))
    codes: np.ndarray = finish_codes(drawn, after, rows, columns).numpy()
    return codes.reshape(tokens.shape)


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


def results(sampled: Sampled) -> dict[int, tuple[int, list[int], int]]:
    """What an update handed back, by row, whatever the order: incarnation, tokens, finish code."""
    by_row = {
        row: (incarnation, tokens[:count], code)
        for row, incarnation, tokens, count, code in zip(
            sampled.rows.tolist(),
            sampled.incarnations.tolist(),
            sampled.tokens.tolist(),
            sampled.counts.tolist(),
            sampled.codes.tolist(),
            strict=True,
        )
    }
    assert len(by_row) == sampled.rows.size, "a row came back twice"
    return by_row


def logprob_results(sampled: Sampled) -> dict[int, tuple[float, list[int], list[float]]]:
    """The logprobs that an update handed back as the frontend reads them, by row."""
    if sampled.logprobs is None:
        return {}
    rows = sampled.flatten()[0]
    by_index = sampled.logprobs.pack(rows).unpack()
    return {int(rows[index]): entry for index, entry in by_index.items()}

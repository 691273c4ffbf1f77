from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from lockstep_worker.sampling.columns import Columns
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import Needs, SamplingParams, find_reason
from support.worlds.tables import CPU, VOCAB, random_params

CONTEXT = 32


def sequence_of(handle: int, params: SamplingParams, prompt: list[int] | None = None) -> Sequence:
    return Sequence.of(NewRequest(handle, prompt or [1, 2, 3], params), CONTEXT)


def scan(table: SlotTable) -> tuple[list[bool], Needs]:
    """What the table keeps by counting, found by looking at every row."""
    held = [None if sequence is None else sequence.params for sequence in table.sequences]
    running = [params for params in held if params is not None]
    sampled = [params for params in running if params.temperature > 0]
    truncated = [params for params in sampled if params.top_p < 1 or params.top_k > 0]
    neutral = SamplingParams(max_tokens=1)
    names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    needs = Needs(
        sampling=bool(sampled),
        truncation=bool(truncated),
        min_p=any(params.min_p for params in sampled),
        min_tokens=any(params.min_tokens for params in running),
        bias=any(params.logit_bias for params in running),
        penalties=any(getattr(params, name) != getattr(neutral, name) for params in running for name in names),
    )
    return [params is not None and bool(params.stop_token_ids or params.logprobs >= 0) for params in held], needs


@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_by_counting_equals_a_full_scan(seed: int) -> None:
    rng = random.Random(seed)
    table = SlotTable(8, CONTEXT, 4)
    for handle in range(1, 500):
        used = [slot for slot, sequence in enumerate(table.sequences) if sequence is not None]
        if table.num_free and (not used or rng.random() < 0.5):
            table.admit(sequence_of(handle, random_params(rng)))
        else:
            table.release(rng.choice(used))
        ineligible, needs = scan(table)
        assert table.ineligible.tolist() == ineligible
        assert table.num_ineligible == sum(ineligible)
        assert table.needs == needs
        asking = [sequence is not None and sequence.params.logprobs >= 0 for sequence in table.sequences]
        assert (table.logprobs >= 0).tolist() == asking
        assert table.num_with_logprobs == sum(asking)
        assert table.num_free == table.sequences.count(None)


def test_only_logprobs_and_token_id_stop_words_divert_a_request() -> None:
    assert find_reason(SamplingParams(max_tokens=4, logprobs=0)) == "logprobs"
    assert find_reason(SamplingParams(max_tokens=4, stop_token_ids=(3,))) == "stop_words"
    sampled = SamplingParams(
        max_tokens=4,
        temperature=0.7,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        end_ids=(2,),
        min_tokens=1,
        repetition_penalty=1.1,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        logit_bias=((1, 1.0),),
    )
    assert find_reason(sampled) == ""


@pytest.mark.parametrize(("max_tokens", "limit"), [(1, 4), (5, 8), (29, CONTEXT), (1000, CONTEXT)])
def test_the_limit_is_prompt_plus_max_tokens_within_the_context(max_tokens: int, limit: int) -> None:
    assert sequence_of(1, SamplingParams(max_tokens=max_tokens)).limit == limit


def test_a_new_owner_finds_nothing_of_the_former_one() -> None:
    table = SlotTable(1, CONTEXT, 4)
    first = SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_p=0.5,
        top_k=4,
        min_p=0.2,
        seed=77,
        end_ids=(5, 6),
        stop_token_ids=(7,),
        repetition_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        logit_bias=((3, 100.0), (4, -100.0)),
        logprobs=5,
    )
    slot = table.admit(sequence_of(1, first, [1] * 20))
    table.set_blocks(slot, [3, 2, 1])
    table.in_flight[slot], table.computed[slot] = 1, 19
    columns = Columns(1, CPU, VOCAB)
    columns.admit(table.take_newcomers())
    columns.finished[slot] = 2
    assert table.release(slot).slot == -1
    assert table.admit(sequence_of(2, SamplingParams(max_tokens=2, temperature=0.0))) == slot
    alone = SlotTable(1, CONTEXT, 4)
    alone.admit(sequence_of(2, SamplingParams(max_tokens=2, temperature=0.0)))
    for name in ("handle", "length", "in_flight", "computed", "limit", "num_blocks", "ineligible", "logprobs"):
        assert getattr(table, name)[slot] == getattr(alone, name)[0], name
    columns.admit(table.take_newcomers())
    fresh = Columns(1, CPU, VOCAB)
    fresh.admit(alone.take_newcomers())
    for name, column in vars(columns).items():
        if isinstance(column, torch.Tensor):
            assert column.tolist() == getattr(fresh, name).tolist(), name
    is_seen, generated = columns.counts.read(torch.tensor([slot]))
    assert not is_seen.any() and not generated.any()
    assert table.incarnation[slot] == 1


def test_a_released_sequence_takes_its_tokens_along() -> None:
    table = SlotTable(1, CONTEXT, 4)
    slot = table.admit(sequence_of(1, SamplingParams(max_tokens=9)))
    table.tokens[slot, 3:5] = [8, 9]
    table.length[slot] = 5
    sequence = table.release(slot)
    table.tokens[slot] = 0
    assert np.array_equal(sequence.tokens, [1, 2, 3, 8, 9])
    assert (sequence.prompt_length, sequence.limit) == (3, 12)


def test_a_sequence_admitted_again_goes_on_where_it_was() -> None:
    table = SlotTable(2, CONTEXT, 4)
    params = SamplingParams(max_tokens=9, min_tokens=4, seed=5)
    slot = table.admit(sequence_of(1, params))
    table.tokens[slot, 3:5] = [8, 9]
    table.length[slot] = 5
    again = table.admit(table.release(slot))
    columns = Columns(2, CPU, VOCAB)
    columns.admit(table.take_newcomers())
    assert [int(column[again]) for column in (columns.length, columns.last_token, columns.min_length)] == [5, 9, 7]
    assert (table.length[again], table.limit[again]) == (5, 12)

"""What newcomers bring goes to the device, and nobody waits for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lockstep_worker.inputs.upload import upload
from lockstep_worker.sampling.columns import Columns
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams

VOCAB = 12
PARAMS = [
    SamplingParams(max_tokens=5, temperature=0.0),
    SamplingParams(max_tokens=5, temperature=0.7, top_p=0.9, seed=7, end_ids=(2,), stop_token_ids=(3,)),
    SamplingParams(max_tokens=5, repetition_penalty=1.3, presence_penalty=0.5, logit_bias=((4, 2.5), (5, -100.0))),
    SamplingParams(max_tokens=5, frequency_penalty=0.5, logit_bias=((1, 1.0),)),
]


def newcomer(handle: int, params: SamplingParams, generated: int) -> Sequence:
    """With tokens of its own behind the prompt, as after a preemption."""
    sequence = Sequence.of(NewRequest(handle, [1, 2, 1], params), 32)
    sequence.tokens = np.append(sequence.tokens, np.full(generated, 6, dtype=np.int32))
    return sequence


def admit_all(columns: Columns) -> None:
    """Every kind of newcomer in every slot, after every other kind; the table of counts grows on the way."""
    for turn in range(len(PARAMS)):
        columns.admit(
            {slot: newcomer(slot, PARAMS[(slot + turn) % len(PARAMS)], generated=turn) for slot in range(len(PARAMS))}
        )


def check(columns: Columns) -> None:
    last = len(PARAMS) - 1
    for slot in range(len(PARAMS)):
        params = PARAMS[(slot + last) % len(PARAMS)]
        assert columns.length[slot].item() == 3 + last
        assert columns.last_token[slot].item() == 6
        assert columns.bias_ids[slot].tolist()[: len(params.logit_bias)] == [token for token, _ in params.logit_bias]
        is_seen, generated = columns.counts.read(torch.tensor([slot], device=columns.device))
        counted = "penalties" in newcomer(1, params, 0).needs
        assert is_seen[0].nonzero().flatten().tolist() == ([1, 2, 6] if counted else [])
        assert generated[0, 6].item() == (last if counted else 0)


def test_newcomers_of_every_kind_are_written_whole() -> None:
    columns = Columns(len(PARAMS), torch.device("cpu"), VOCAB)
    admit_all(columns)
    check(columns)


def test_an_array_that_is_no_whole_block_of_memory_goes_over() -> None:
    assert upload(np.arange(12).reshape(3, 4)[:, ::2], torch.device("cpu")).tolist() == [[0, 2], [4, 6], [8, 10]]


@pytest.mark.gpu
def test_no_newcomer_makes_the_host_wait_for_a_gpu() -> None:
    columns = Columns(len(PARAMS), torch.device("cuda"), VOCAB)
    torch.cuda.set_sync_debug_mode("error")
    try:
        admit_all(columns)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check(columns)

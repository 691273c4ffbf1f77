"""What adds up whole rows after the forward: a row's numbers do not depend on the number of rows or on its place."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.logits import keep_top, scale
from lockstep_worker.sampling.logprobs import top_logprobs
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.wire.params import SamplingParams


@pytest.mark.parametrize("vocabulary", [8, 9, 10, 11])
def test_logprobs_of_a_vocabulary_of_any_size_are_its_log_softmax(vocabulary: int) -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(3, vocabulary), torch.tensor([0, vocabulary - 1, 4])
    found = top_logprobs(logits, tokens, vocabulary)
    expected, ids = logits.log_softmax(dim=1).sort(dim=1, descending=True)
    assert torch.equal(found.ids, ids.int())
    torch.testing.assert_close(found.values, expected)
    torch.testing.assert_close(found.drawn, logits.log_softmax(dim=1).gather(1, tokens[:, None])[:, 0])


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [151936, 32001])
def test_a_gpu_brings_the_same_bits_in_any_row_of_any_batch(vocabulary: int) -> None:
    most = 400
    params = SamplingParams(max_tokens=5, temperature=1.0, top_p=0.9)
    columns = Columns(most, torch.device("cuda"), vocabulary)
    columns.admit({slot: Sequence(slot, params, 1, 9, torch.zeros(1).int().numpy()) for slot in range(most)})
    torch.manual_seed(0)
    row = torch.randn(1, vocabulary, device="cuda") * 3
    kept, logprobs = [], []
    for count in (1, 2, 7, 64, most):
        logits, rows = row.expand(count, -1).contiguous(), torch.arange(count, device="cuda")
        kept.append(keep_top(scale(logits, rows, columns), rows, columns))
        logprobs.append(top_logprobs(logits, torch.zeros_like(rows), 5).values)
    for one in (*kept, *logprobs):
        first = (kept if one.shape[1] == vocabulary else logprobs)[0]
        assert torch.equal(one, first.expand_as(one))

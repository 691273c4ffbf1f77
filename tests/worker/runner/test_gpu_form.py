"""The whole form that a run has on a GPU, kernels in Triton's interpreter, against the one that it has on a CPU."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.attention.batch import PackedBatch
from lockstep_worker.attention.paged import PagedBackend
from lockstep_worker.kernels.draw import Candidates, DrawInput
from lockstep_worker.model.dense.recognise import take_weights
from lockstep_worker.model.dense.weights import DenseWeights
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.sampling.columns import Columns
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.checkout import ROOT
from support.worlds.local_group import LocalGroup, run_again

PROMPTS = [list(range(20, 37)), [50, 60, 70, 80, 90]]
GREEDY = SamplingParams(max_tokens=5, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=4, temperature=0.9, seed=7)
SHAPED = SamplingParams(max_tokens=3, temperature=0.8, seed=3, top_k=5, repetition_penalty=1.3, logprobs=2)


@pytest.fixture(scope="module")
def plain() -> Model:
    return load_model(str(ROOT / "models" / "recall"), device=torch.device("cpu"), dtype="float32")


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> Model:
    """The same model as a GPU would run it: own forward, own attention, own sampler."""
    monkeypatch.setattr(PagedBackend, "serves", staticmethod(lambda kv, shape: True))
    found = load_model(str(ROOT / "models" / "recall"), device=torch.device("cpu"), dtype="float32")
    weights = take_weights(found._network, found.max_model_len)
    assert isinstance(weights, DenseWeights)
    make = Columns.__init__

    def in_kernels(self: Columns, num_slots: int, device: torch.device, vocab_size: int) -> None:
        make(self, num_slots, device, vocab_size)
        self.in_kernels = True

    monkeypatch.setattr(Columns, "__init__", in_kernels)
    return Model(found._network, shape=found._shape, end_ids=(), device=found.device, dense=weights)


@pytest.mark.parametrize(
    ("params", "head_draws"),
    [(GREEDY, False), (SAMPLED, True), (SHAPED, False)],
    ids=["greedy", "sampled", "truncated, penalised, with logprobs"],
)
def test_replays_by_kernels_bring_the_tokens_of_eager_runs_by_torch(
    plain: Model, dense: Model, params: SamplingParams, head_draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws, decode_best = [], dense.decode_best

    def watched(batch: PackedBatch, draw: DrawInput | None) -> Candidates:
        draws.append(draw)
        return decode_best(batch, draw)

    monkeypatch.setattr(dense, "decode_best", watched)
    requests = [NewRequest(1, PROMPTS[0], params), NewRequest(2, PROMPTS[1], GREEDY)]
    expected = LocalGroup(plain).run([requests])
    group = LocalGroup(dense, capture=run_again, max_batch_size=4)
    found = group.run([requests])
    assert (dense.path, dense.attention_name) == ("fast", "paged")
    assert group.eager[""] >= 2
    assert any(draw is not None for draw in draws) is head_draws
    assert found.tokens == expected.tokens
    assert found.codes == expected.codes
    for handle, entries in expected.logprobs.items():
        for (right, ids, _), (drawn, found_ids, _) in zip(entries, found.logprobs[handle], strict=True):
            assert found_ids == ids
            assert drawn == pytest.approx(right, abs=1e-4)

"""The batch-invariant form through the whole loop, kernels in Triton's interpreter: neighbours change no bit."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.attention.paged import PagedBackend
from lockstep_worker.model.dense.recognise import take_weights
from lockstep_worker.model.dense.weights import DenseWeights
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.checkout import ROOT
from support.kernels.exact_dot import make_dots_exact
from support.worlds.local_group import LocalGroup, Record, run_again

OWN = NewRequest(1, list(range(20, 40)), SamplingParams(max_tokens=3, temperature=0.9, seed=7, top_p=0.9, logprobs=3))
OTHER = NewRequest(2, [50, 60, 70], SamplingParams(max_tokens=3, temperature=0.0))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    make_dots_exact(monkeypatch)
    monkeypatch.setattr(PagedBackend, "serves", staticmethod(lambda kv, shape: True))
    found = load_model(str(ROOT / "models" / "recall"), device=torch.device("cpu"), dtype="float32")
    weights = take_weights(found._network, found.max_model_len)
    assert isinstance(weights, DenseWeights)
    return Model(
        found._network, shape=found._shape, end_ids=(), device=found.device, dense=weights, batch_invariant=True
    )


def own_of(record: Record) -> tuple[object, ...]:
    return record.tokens[1], record.codes[1], record.logprobs[1]


def test_neighbours_chunks_and_replays_change_no_bit_of_a_request(model: Model) -> None:
    alone = own_of(LocalGroup(model, max_batch_size=4).run([[OWN]]))
    group = LocalGroup(model, capture=run_again, max_batch_size=4, max_num_tokens=16)
    beside = group.run([[OTHER, OWN]])
    assert group.eager[""] >= 2, "some were replays"
    assert own_of(beside) == alone
    assert (model.path, model.attention_name, model.finds_best) == ("invariant", "paged", False)

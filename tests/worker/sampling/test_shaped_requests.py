"""Penalties, bias and logprobs through the whole loop with a real model, beside transformers and any neighbours."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import VOCAB, save_tiny_model
from support.worlds.local_group import LocalGroup, Record

PROMPT = [5, 6, 7, 8, 90, 41, 33]
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load_model(str(path), device=torch.device("cpu"), dtype="float32")


@pytest.fixture(scope="module")
def reference(path: Path) -> hf.PreTrainedModel:
    return hf.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def params_of(temperature: float = 0.0, max_tokens: int = NUM_TOKENS, **options: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=temperature, **options)  # type: ignore[arg-type]


def mixed_requests(seed: int, count: int = 30) -> list[NewRequest]:
    """Requests that ask for one thing, for all, or for none."""
    rng = random.Random(seed)
    choices: list[dict[str, object]] = [
        {},
        {"repetition_penalty": 1.4},
        {"frequency_penalty": 0.8, "presence_penalty": -0.3},
        {"logit_bias": ((3, 100.0), (4, 100.0))},
        {"logit_bias": tuple((token, -100.0) for token in range(60))},
        {"logprobs": 3},
        {"logprobs": 0, "repetition_penalty": 1.2, "presence_penalty": 1.0, "logit_bias": ((7, 4.0),)},
    ]
    return [
        NewRequest(
            handle,
            [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))],
            params_of(rng.choice([0.0, 1.0]), rng.randrange(1, 40), seed=rng.getrandbits(63), **rng.choice(choices)),
        )
        for handle in range(1, count + 1)
    ]


def check_equal(found: Record, expected: Record) -> None:
    assert found.tokens == expected.tokens
    assert found.codes == expected.codes
    assert found.logprobs.keys() == expected.logprobs.keys()
    for handle, entries in expected.logprobs.items():
        for (drawn, ids, values), (other, other_ids, others) in zip(entries, found.logprobs[handle], strict=True):
            assert ids == other_ids
            np.testing.assert_allclose([other, *others], [drawn, *values], atol=1e-4)


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_greedy_with_a_repetition_penalty_is_transformers_generate(
    model: Model, reference: hf.PreTrainedModel, penalty: float
) -> None:
    expected = reference.generate(
        torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False, repetition_penalty=penalty, pad_token_id=0
    )[0, len(PROMPT) :].tolist()
    plain, found = (
        LocalGroup(model).generate([PROMPT], params_of(repetition_penalty=one))[0] for one in (1.0, penalty)
    )
    assert found == expected
    assert found != plain


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.5, "top_k": 9}])
def test_logprobs_are_the_log_softmax_of_transformers_logits(
    model: Model, reference: hf.PreTrainedModel, overlap: bool, options: dict[str, object]
) -> None:
    params = params_of(logprobs=5, logit_bias=((11, 6.0),), **options)  # type: ignore[arg-type]
    record = LocalGroup(model, overlap=overlap).run([[NewRequest(1, PROMPT, params)]])
    tokens, entries = record.tokens[1], record.logprobs[1]
    assert len(entries) == len(tokens) == NUM_TOKENS
    with torch.no_grad():
        logits = reference(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1)
    best = expected.topk(5)
    for index, (token, (drawn, ids, values)) in enumerate(zip(tokens, entries, strict=True)):
        assert drawn == pytest.approx(float(expected[index, token]), abs=1e-3)
        assert ids == best.indices[index].tolist()
        np.testing.assert_allclose(values, best.values[index].numpy(), atol=1e-3)


@pytest.mark.parametrize(("asked", "entries"), [(-1, None), (0, 0), (1, 1), (20, 20)])
def test_as_many_best_tokens_come_as_were_asked_for(model: Model, asked: int, entries: int | None) -> None:
    requests = [NewRequest(1, PROMPT, params_of(logprobs=asked)), NewRequest(2, PROMPT, params_of(logprobs=7))]
    record = LocalGroup(model).run([requests])
    assert {len(ids) for _, ids, _ in record.logprobs[2]} == {7}
    if entries is None:
        assert 1 not in record.logprobs
    else:
        assert {len(ids) for _, ids, _ in record.logprobs[1]} == {entries}
        assert len(record.logprobs[1]) == NUM_TOKENS


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_each_request_gets_what_it_gets_alone(model: Model, seed: int, overlap: bool) -> None:
    requests = mixed_requests(seed)
    alone = Record()
    for one in requests:
        record = LocalGroup(model, overlap=False, prefix_cache=False).run([[one]])
        for name in ("tokens", "codes", "logprobs"):
            getattr(alone, name).update(getattr(record, name))
    check_equal(LocalGroup(model, overlap=overlap).run([requests]), alone)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_preemption_changes_no_token_and_sends_no_logprobs_twice(model: Model, overlap: bool) -> None:
    requests = [one for seed in range(3) for one in mixed_requests(seed, 12)]
    requests = [NewRequest(handle, one.prompt, one.params) for handle, one in enumerate(requests, 1)]
    small = LocalGroup(model, overlap=overlap, num_blocks=24, block_size=4, max_batch_size=16)
    found = small.run([requests])
    assert small.scheduler.num_preemptions > 5
    check_equal(found, LocalGroup(model, overlap=False).run([requests]))
    for one in requests:
        count = len(found.tokens[one.handle]) if one.params.logprobs >= 0 else 0
        assert len(found.logprobs.get(one.handle, [])) == count


def test_a_slots_next_owner_finds_no_bias_no_counts_and_no_logprobs(model: Model) -> None:
    plain = LocalGroup(model).generate([PROMPT], params_of())[0]
    greedy_users = [
        params_of(logit_bias=((3, 100.0),)),
        params_of(repetition_penalty=3.0, presence_penalty=2.0, frequency_penalty=2.0),
        params_of(logprobs=4),
    ]
    group = LocalGroup(model, max_batch_size=1)
    requests = [
        NewRequest(2 * index + offset, PROMPT, params)
        for index, user in enumerate(greedy_users)
        for offset, params in ((1, user), (2, params_of()))
    ]
    record = group.run([requests])
    assert [record.tokens[handle] for handle in (2, 4, 6)] == [plain] * 3
    assert set(record.tokens[1]) == {3}
    assert record.tokens[3] != plain
    assert record.logprobs.keys() == {5}


def test_only_rows_with_logprobs_leave_the_batched_path_and_the_metric_says_why(model: Model) -> None:
    group = LocalGroup(model)
    params = [params_of(logprobs=2), params_of(repetition_penalty=1.2), params_of(logit_bias=((1, 1.0),)), params_of()]
    group.run([[NewRequest(handle, PROMPT, one) for handle, one in enumerate(params, 1)]])
    counts = {labels: child.value for labels, child in group.metrics.sampler_requests_total.items()}
    assert counts[("per_request", "logprobs")] == NUM_TOKENS
    assert counts[("batched", "")] == 3 * NUM_TOKENS

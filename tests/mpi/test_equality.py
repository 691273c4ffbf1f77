"""Two hundred prompts at once over HTTP give what `transformers.generate` gives, on one, two and four ranks."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
import torch

from support.data import recall_model
from support.ranks.serve_group import ServeGroup, completion, serve_group

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]
NUM_PROMPTS = 200
LIMIT = 64
LONGEST = 304
ROOMY, TINY = {"num_blocks": 8000}, {"num_blocks": 2 * LONGEST // 16}
"""A cache that keeps all prompts, and one that holds two of the longest kind."""
Answer = tuple[str, int]
"""Text and number of tokens."""


def cases(*ranks: int) -> pytest.MarkDecorator:
    """Groups of so many ranks, with overlap and without."""
    pairs = [(count, overlap) for count in ranks for overlap in (True, False)]
    ids = [f"{count} ranks, {'overlap' if overlap else 'no overlap'}" for count, overlap in pairs]
    return pytest.mark.parametrize("group", pairs, ids=ids, indirect=True)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return recall_model.prompts(3, NUM_PROMPTS)


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[Answer]:
    model, tokens = recall_model.reference(), recall_model.tokenizer()
    answers = [recall_model.generate(model, prompt, LIMIT) for prompt in prompts]
    return [(tokens.decode(ids, skip_special_tokens=True), len(ids)) for ids in answers]


@pytest.fixture(scope="module")
def group(request: pytest.FixtureRequest) -> Iterator[ServeGroup]:
    ranks, overlap = request.param
    with start(ranks, overlap, ROOMY) as group:
        yield group


def start(ranks: int, overlap: bool, room: dict[str, int]) -> contextlib.AbstractContextManager[ServeGroup]:
    return serve_group(tensor_parallel=ranks, overlap=overlap, debug_checks=True, max_model_len=LONGEST, **room)


def ask(group: ServeGroup, prompts: list[list[int]]) -> tuple[list[Answer], int]:
    """The answers to all prompts, sent at once, and how many of their tokens were in the cache."""
    answers = group.complete_all(prompts, max_tokens=LIMIT)
    cached = sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
    return [(answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) for answer in answers], cached


@cases(1, 2, 4)
def test_all_prompts_at_once_give_the_tokens_of_transformers_from_a_cold_and_from_a_warm_cache(
    group: ServeGroup, prompts: list[list[int]], expected: list[Answer]
) -> None:
    found, cached = ask(group, prompts)
    assert found == expected
    again, cached_again = ask(group, prompts)
    assert again == expected
    whole_blocks = sum((len(prompt) - 1) // 16 * 16 for prompt in prompts)
    assert cached < cached_again == whole_blocks


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_cache_so_small_that_it_preempts_changes_no_token(
    ranks: int, overlap: bool, prompts: list[list[int]], expected: list[Answer]
) -> None:
    with start(ranks, overlap, TINY) as group:
        assert ask(group, prompts)[0] == expected
        preemptions = [group.rank_metric("lockstep_preemptions_total", rank) for rank in range(ranks)]
    assert min(preemptions) == max(preemptions) > 0


@cases(2)
def test_penalties_bias_and_logprobs_take_effect_over_http(group: ServeGroup, prompts: list[list[int]]) -> None:
    """Greedy under a repetition penalty, and a forced token, beside transformers' own tokens and log-softmax."""
    model, prompt, count, forced_id = recall_model.reference(), prompts[0], 16, 70
    penalized = torch.tensor([prompt])
    penalized = model.generate(penalized, max_new_tokens=count, do_sample=False, repetition_penalty=1.5)
    count = penalized.shape[1] - len(prompt)
    forced = torch.tensor([prompt + [forced_id] * count])
    with group.client() as client:
        for ids, options in (
            (penalized, {"repetition_penalty": 1.5}),
            (forced, {"logit_bias": {str(forced_id): 100, "223": -100}}),
        ):
            body = completion(prompt, max_tokens=count, logprobs=2, **options)
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            with torch.no_grad():
                logprobs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            drawn = logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
            found = answer.json()["choices"][0]["logprobs"]
            assert found["token_logprobs"] == pytest.approx(drawn, abs=1e-3)
            best = [max(top.values()) for top in found["top_logprobs"]]
            assert best == pytest.approx(logprobs.amax(-1).tolist(), abs=1e-3)


@cases(2)
def test_sigterm_lets_a_running_request_finish_and_ends_with_zero(group: ServeGroup, prompts: list[list[int]]) -> None:
    """The group's last test: it ends it."""
    body = completion(prompts[0], max_tokens=150, ignore_eos=True, stream=True)
    with group.client() as client, client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        group.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]

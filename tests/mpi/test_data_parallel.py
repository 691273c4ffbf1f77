"""Data replicas as people start them: sixty prompts at once, a prefix that finds its replica, a drain, a stop."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from lockstep_worker import contract
from support.data import recall_model
from support.ranks.serve_group import ServeGroup, completion, serve_group

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(500)]
NUM_PROMPTS = 60
LIMIT = 48
TIMEOUT_S = 8.0


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return recall_model.prompts(5, NUM_PROMPTS)


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[str]:
    model, tokens = recall_model.reference(), recall_model.tokenizer()
    return [tokens.decode(recall_model.generate(model, prompt, LIMIT), skip_special_tokens=True) for prompt in prompts]


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank each", "two ranks each"])
def group(request: pytest.FixtureRequest) -> Iterator[ServeGroup]:
    with serve_group(data_parallel=2, tensor_parallel=request.param, debug_checks=True) as group:
        yield group


def read_ranks(group: ServeGroup, name: str) -> list[float]:
    """A metric of every rank."""
    return [group.rank_metric(contract.METRIC_PREFIX + name, rank) for rank in range(group.ranks)]


def test_sixty_prompts_at_once_give_the_tokens_of_transformers_from_all_replicas(
    group: ServeGroup, prompts: list[list[int]], expected: list[str]
) -> None:
    answers = group.complete_all(prompts, max_tokens=LIMIT)
    assert [answer["choices"][0]["text"] for answer in answers] == expected
    computed = read_ranks(group, "step_tokens_total")
    assert len(computed) == group.ranks
    assert min(computed) > 0.2 * max(computed), computed


def test_a_repeated_prompt_is_found_in_the_cache_of_exactly_the_replica_that_has_it(
    group: ServeGroup, prompts: list[list[int]]
) -> None:
    prompt = [*range(20, 60), *range(60, 20, -1)]
    group.complete(prompt, max_tokens=2)
    before = read_ranks(group, "prefix_cache_hit_tokens_total")
    for _ in range(3):
        group.complete(prompt, max_tokens=2)
    found = [new - old for new, old in zip(read_ranks(group, "prefix_cache_hit_tokens_total"), before, strict=True)]
    width = group.ranks // 2
    assert sorted(found) == [0.0] * width + [3 * 64.0] * width
    assert len(set(found[:width])) == 1  # ranks of one replica


def test_usage_tells_cached_tokens_wherever_the_request_ran(group: ServeGroup) -> None:
    before = read_ranks(group, "prefix_cache_hit_tokens_total")
    for first in range(100, 106):
        prompt = completion([first, *range(20, 60), *range(60, 21, -1)], max_tokens=2)
        # Ties go by handle: an odd number of requests now and then sends the next prompt to the other replica.
        asked = range(2 + first % 2)
        *_, again = (httpx.post(f"{group.url}/v1/completions", json=prompt, timeout=60).json() for _ in asked)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    assert min(np.subtract(read_ranks(group, "prefix_cache_hit_tokens_total"), before)) > 0, "all on one replica"


def test_sigterm_lets_the_requests_of_all_replicas_finish_and_ends_with_zero(
    group: ServeGroup, prompts: list[list[int]]
) -> None:
    """The group's last test: it ends it."""
    body = completion(prompts[0], max_tokens=150, ignore_eos=True, stream=True, n=4, temperature=1)
    with group.client() as client, client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        group.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert sum('"finish_reason":"length"' in line for line in rest) == 4
    assert group.wait_end(bound_s=60) == 0, group.log
    assert "did not leave" not in group.log


def test_a_rank_of_another_replica_that_is_stopped_is_named_and_ends_the_group_in_time() -> None:
    with serve_group(data_parallel=2, tensor_parallel=1, hang_timeout=TIMEOUT_S, routing="least-loaded") as group:
        body = completion("COPY ab", max_tokens=900, ignore_eos=True, stream=True)
        with group.client() as client, client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(group.rank_pids()[1], signal.SIGSTOP)
            last = [line for line in lines if line][-1]
        assert group.wait_end(bound_s=TIMEOUT_S + 15) == contract.EXIT_HANG, group.log
        message = json.loads(last.removeprefix("data: "))["error"]["message"]
        assert "rank 1 does not answer: rank 0 saw no progress" in message

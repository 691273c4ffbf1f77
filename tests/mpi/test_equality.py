"""Fifty prompts at once over HTTP to two ranks that share the model give what `transformers.generate` gives."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support import recall_model
from support.serve_group import ServeGroup, completion, serve_group

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]
NUM_PROMPTS = 50
LIMIT = 64


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokens = recall_model.tokenizer()
    return [recall_model.encode_prompt(tokens, one) for one in recall_model.conversations(3, NUM_PROMPTS)]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[tuple[str, int]]:
    """Text and number of tokens of each answer."""
    model, tokens = recall_model.reference(), recall_model.tokenizer()
    answers = [recall_model.generate(model, prompt, LIMIT) for prompt in prompts]
    return [(tokens.decode(ids, skip_special_tokens=True), len(ids)) for ids in answers]


@pytest.fixture(scope="module", params=[True, False], ids=["overlap", "no overlap"])
def group(request: pytest.FixtureRequest) -> Iterator[ServeGroup]:
    with serve_group(overlap=request.param, debug_checks=True) as group:
        yield group


async def ask_all(url: str, prompts: list[list[int]]) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=url, timeout=200, limits=httpx.Limits(max_connections=None)) as client:
        posts = (client.post("/v1/completions", json=completion(prompt, max_tokens=LIMIT)) for prompt in prompts)
        answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return [answer.json() for answer in answers]


def test_fifty_prompts_at_once_give_the_tokens_of_transformers(
    group: ServeGroup, prompts: list[list[int]], expected: list[tuple[str, int]]
) -> None:
    answers = asyncio.run(ask_all(group.url, prompts))
    found = [(answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) for answer in answers]
    assert found == expected
    again = asyncio.run(ask_all(group.url, prompts[:10]))  # now from the prefix cache
    assert [answer["choices"][0]["text"] for answer in again] == [text for text, _ in expected[:10]]


def test_sigterm_lets_what_runs_finish_and_ends_with_zero(
    group: ServeGroup, prompts: list[list[int]], request: pytest.FixtureRequest
) -> None:
    """The group's last test: it ends it, one group while it works and the other while it idles."""
    if request.node.callspec.id == "overlap":
        drain_while_streaming(group, prompts[0])
    else:
        group.process.send_signal(signal.SIGTERM)
    assert group.wait_end(bound_s=30) == 0, group.log
    assert "Traceback" not in group.log


def drain_while_streaming(group: ServeGroup, prompt: list[int]) -> None:
    """Have the group drain in the middle of a stream, which must come to its own end."""
    body = completion(prompt, max_tokens=200, ignore_eos=True, stream=True)
    with group.client() as client, client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        group.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]

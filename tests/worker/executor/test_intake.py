"""What rank 0 lets in: bad requests are refused alone, and what is let in cannot fail a step."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import zmq

from lockstep_worker.errors import RequestError
from lockstep_worker.executor.intake import MAX_ITEMS_PER_STEP, Intake, Limits, check_request
from lockstep_worker.model.loader import load_model
from lockstep_worker.wire.messages import Cancel, Inbound, NewRequest, Refused, Shutdown
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import save_tiny_model
from support.worlds.local_group import LocalGroup

LIMITS = Limits(vocab_size=96, max_model_len=64, num_blocks=6, block_size=8)
GOOD = {"max_tokens": 4}
BAD = [
    ([], {}, "prompt", "1 to 63"),
    ([1] * 64, {}, "prompt", "1 to 63"),
    ([96], {}, "prompt", "0 to 95"),
    ([-1], {}, "prompt", "0 to 95"),
    ([1], {"max_tokens": 0}, "max_tokens", "1 to"),
    ([1] * 40, {"max_tokens": 9}, "max_tokens", "7 KV blocks; the pool has 6"),
    ([1], {"end_ids": (96,)}, "end_ids", "0 to 95"),
    ([1], {"stop_token_ids": (-2,)}, "stop_token_ids", "0 to 95"),
    ([1], {"stop_token_ids": tuple(range(17))}, "stop_token_ids", "limit is 16"),
    ([1], {"seed": -1}, "seed", "0 to"),
    ([1], {"seed": 1 << 63}, "seed", "0 to"),
    ([1], {"min_tokens": -1}, "min_tokens", "0 to"),
    ([1], {"min_tokens": 1 << 63}, "min_tokens", "0 to"),
    ([1], {"top_k": -1}, "top_k", "0 to"),
    ([1], {"top_k": 1 << 63}, "top_k", "0 to"),
    ([1], {"top_p": 1.01}, "top_p", "0 to 1"),
    ([1], {"min_p": float("nan")}, "min_p", "0 to 1"),
    ([1], {"temperature": -0.1}, "temperature", "0 to"),
    ([1], {"temperature": float("inf")}, "temperature", "0 to"),
    ([1], {"temperature": float("nan")}, "temperature", "0 to"),
    ([1], {"repetition_penalty": 0.0}, "repetition_penalty", "0.1 to 10"),
    ([1], {"repetition_penalty": float("nan")}, "repetition_penalty", "0.1 to 10"),
    ([1], {"presence_penalty": 2.5}, "presence_penalty", "-2 to 2"),
    ([1], {"frequency_penalty": float("-inf")}, "frequency_penalty", "-2 to 2"),
    ([1], {"logprobs": 21}, "logprobs", "-1 to 20"),
    ([1], {"logprobs": -2}, "logprobs", "-1 to 20"),
    ([1], {"logit_bias": ((96, 1.0),)}, "logit_bias", "0 to 95"),
    ([1], {"logit_bias": ((-1, 1.0),)}, "logit_bias", "0 to 95"),
    ([1], {"logit_bias": ((5, 1.0), (5, 2.0))}, "logit_bias", "twice"),
    ([1], {"logit_bias": ((5, 100.1),)}, "logit_bias", "-100 to 100"),
    ([1], {"logit_bias": ((5, float("nan")),)}, "logit_bias", "-100 to 100"),
    ([1], {"logit_bias": tuple((token, 1.0) for token in range(301))}, "logit_bias", "limit is 300"),
]


def request(prompt: list[int], handle: int = 1, **options: object) -> NewRequest:
    return NewRequest(handle, prompt, SamplingParams(**(GOOD | options)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("prompt", "options", "field", "limit"), BAD)
def test_a_bad_request_is_refused_by_field_and_limit(
    prompt: list[int], options: dict[str, Any], field: str, limit: str
) -> None:
    with pytest.raises(RequestError) as refused:
        check_request(request(prompt, **options), LIMITS)
    assert refused.value.field == field
    assert limit in refused.value.message


def test_a_request_that_fills_the_pool_or_the_context_is_let_in() -> None:
    check_request(request([1] * 40, max_tokens=8), LIMITS)
    check_request(request([1] * 63, max_tokens=1000), Limits(96, 64, 8, 8))


def test_whatever_is_let_in_can_be_served(tmp_path: Path) -> None:
    """Random parameters at and around every limit; those that pass run through the real loop."""
    rng = random.Random(2)
    model = load_model(str(save_tiny_model("llama", tmp_path)), device=torch.device("cpu"), dtype="float32")
    limits = Limits(model.vocab_size, model.max_model_len, 64, 8)
    passed = [one for one in (edge_request(rng, handle) for handle in range(1, 250)) if is_let_in(one, limits)]
    assert 20 < len(passed) < 200
    record = LocalGroup(model, num_blocks=64, block_size=8, max_batch_size=32).run([passed])
    assert record.codes.keys() == {one.handle for one in passed}


def edge_request(rng: random.Random, handle: int) -> NewRequest:
    huge = (1 << 31) - 1
    return request(
        [rng.choice([0, 1, 95, 95, 96]) for _ in range(rng.choice([1, 2, 30]))],
        handle,
        max_tokens=rng.choice([1, 3, huge + 1]) if rng.random() < 0.3 else 2,
        temperature=rng.choice([0.0, 1e-45, 1e-30, 1.0, 3.4e38, 3.5e38]),
        top_p=rng.choice([0.0, 1e-30, 0.5, 1.0]),
        top_k=rng.choice([0, 1, 96, huge]),
        min_p=rng.choice([0.0, 1.0, 0.3]),
        seed=rng.choice([0, (1 << 63) - 1, 1 << 63]) if rng.random() < 0.3 else 5,
        end_ids=rng.choice([(), (0,), (95,), tuple(range(16))]),
        stop_token_ids=rng.choice([(), (0, 95), (96,)]) if rng.random() < 0.3 else (),
        min_tokens=rng.choice([0, 1, huge]),
        repetition_penalty=rng.choice([0.1, 1.0, 10.0]),
        presence_penalty=rng.choice([-2.0, 0.0, 2.0]),
        frequency_penalty=rng.choice([-2.0, 0.0, 2.0]),
        logit_bias=rng.choice([(), ((0, 100.0), (95, -100.0)), tuple((token, -100.0) for token in range(96))]),
        logprobs=rng.choice([-1, 0, 20]),
    )


def is_let_in(one: NewRequest, limits: Limits) -> bool:
    try:
        check_request(one, limits)
    except RequestError:
        return False
    return True


# --- the intake ------------------------------------------------------------------------------------------------------
class Link:
    """The frontend's end of the link, and an intake on the other."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: str) -> None:
        self.refused: list[Refused] = []
        self.socket = context.socket(zmq.PUSH)
        self.socket.bind(f"ipc://{folder}/in")
        self.intake = Intake(context, f"ipc://{folder}/in", LIMITS, self.refused.append)

    def send(self, *items: Inbound) -> None:
        for item in items:
            self.socket.send(msgspec.msgpack.encode(item))

    def take(self, count: int) -> list[Inbound]:
        """Take until so many items were taken or refused."""
        items: list[Inbound] = []
        deadline = time.monotonic() + 20
        while len(items) + len(self.refused) < count and time.monotonic() < deadline:
            self.intake.wait(1)
            items += self.intake.take()
        return items


@pytest.fixture
def link() -> Iterator[Link]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        link = Link(context, folder)
        yield link
        link.socket.close(linger=0)
        link.intake.close()
        context.term()


def test_items_come_in_order_and_a_bad_request_is_refused_among_good_ones(link: Link) -> None:
    good: list[Inbound] = [request([1], 1), Cancel(1), request([2], 3), Shutdown()]
    link.send(*good[:2], request([1000], 2), *good[2:])
    assert link.take(5) == good
    assert [(one.handle, one.field) for one in link.refused] == [(2, "prompt")]


def test_nothing_there_is_an_empty_list_at_once(link: Link) -> None:
    assert link.intake.take() == []


def test_a_burst_is_taken_in_bounded_parts(link: Link) -> None:
    link.send(*(Cancel(handle) for handle in range(1, 2 * MAX_ITEMS_PER_STEP + 2)))
    parts: list[int] = []
    deadline = time.monotonic() + 20
    while sum(parts) < 2 * MAX_ITEMS_PER_STEP + 1 and time.monotonic() < deadline:
        link.intake.wait(1)
        parts.append(len(link.intake.take()))
    assert sum(parts) == 2 * MAX_ITEMS_PER_STEP + 1
    assert max(parts) <= MAX_ITEMS_PER_STEP


def test_a_wait_is_ended_by_an_item_and_by_its_time(link: Link) -> None:
    link.intake.wait(0.01)
    assert link.intake.take() == []
    link.send(Cancel(4))
    start = time.monotonic()
    link.intake.wait(60)
    assert time.monotonic() - start < 20
    assert link.intake.take() == [Cancel(4)]

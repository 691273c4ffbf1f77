"""What a real group of two ranks says of its start; clients that go away from it, and clients that send nonsense."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.data import recall_model
from support.ranks.serve_group import START_BOUND_S, ServeGroup, completion, serve_group, wait_until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]
SLOTS = 4
FREED_BOUND_S = 5.0
"""A second is what is promised; a machine that others use may need more for the step itself."""
GAUGES = ("lockstep_requests_running", "lockstep_requests_waiting", "lockstep_kv_blocks_used")
NUM_GOOD = 20
LIMIT = 48


@pytest.fixture(scope="module")
def group() -> Iterator[ServeGroup]:
    with serve_group(max_batch_size=SLOTS, max_num_tokens=64, debug_checks=True) as group:
        yield group


@contextlib.contextmanager
def send(group: ServeGroup, **body: Any) -> Iterator[socket.socket]:
    """A request whose answer nobody reads; the connection closes at the end."""
    content = json.dumps(completion(**body)).encode()
    head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", group.port)) as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}".encode() + content)
        yield connection


def endless(length: int = 8, **body: Any) -> dict[str, Any]:
    """A request that runs for many steps, with a prompt that no cache holds."""
    prompt = [random.randrange(10, 400) for _ in range(length)]
    return {"prompt": prompt, "max_tokens": 1000 - length, "ignore_eos": True} | body


def wait_for(group: ServeGroup, name: str, value: float, bound_s: float = 60.0, rank: int = 0) -> None:
    wait_until(
        lambda: group.rank_metric(name, rank) == value,
        bound_s,
        lambda: f"{name} of rank {rank}: {group.rank_metric(name, rank)}",
    )


def wait_until_free(group: ServeGroup) -> None:
    """Everything is free on both ranks, soon."""
    deadline = time.monotonic() + FREED_BOUND_S
    for rank in range(2):
        for name in GAUGES:
            wait_for(group, name, 0, max(deadline - time.monotonic(), 0.1), rank)


def test_each_rank_says_in_one_line_how_long_the_parts_of_its_start_took(group: ServeGroup) -> None:
    line = re.compile(r"\[rank (\d)\] .*: ready after (\S+) s: load (\S+) s, measure 0\.0 s, capture 0\.0 s\n")
    wait_until(lambda: len(line.findall(group.log)) == 2, START_BOUND_S, lambda: group.log)
    found = line.findall(group.log)
    assert sorted(rank for rank, _, _ in found) == ["0", "1"]
    assert all(float(whole) >= float(load) > 0 for _, whole, load in found)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_goes_away_in_decode_frees_its_blocks(group: ServeGroup, stream: bool, n: int) -> None:
    with send(group, **endless(stream=stream, n=n)) as connection:
        wait_for(group, GAUGES[0], n)
        if stream:
            assert b" 200 " in connection.recv(64)
        assert group.rank_metric(GAUGES[2], rank=1) > 0
    wait_until_free(group)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_goes_away_in_prefill_frees_its_blocks(group: ServeGroup, stream: bool) -> None:
    prompts = [[random.randrange(10, 400) for _ in range(950)] for _ in range(SLOTS)]  # 60 steps of prefill
    with send(group, **endless(prompt=prompts, max_tokens=20, stream=stream)):
        wait_until(lambda: group.rank_metric(GAUGES[2]) >= 60, 60)  # the first prompt has its blocks
    wait_until_free(group)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_goes_away_in_the_queue_leaves_it(group: ServeGroup, stream: bool) -> None:
    with send(group, **endless(n=SLOTS)):
        wait_for(group, GAUGES[0], SLOTS)
        with send(group, **endless(stream=stream, n=2)):
            wait_for(group, GAUGES[1], 2)
        wait_for(group, GAUGES[1], 0, FREED_BOUND_S)
        assert group.rank_metric(GAUGES[0]) == SLOTS
    wait_until_free(group)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"nonsense": 1}),
    ("completions", {"max_tokens": "many"}),
    ("completions", {"temperature": float("nan")}),
    ("completions", {"prompt": [448]}),
    ("completions", {"prompt": [-1]}),
    ("completions", {"prompt": [2**70]}),
    ("completions", {"prompt": "\udc00"}),
    ("completions", {"prompt": [5] * 1024}),
    ("completions", {"prompt": [5] * 1000, "max_tokens": 100}),
    ("completions", {"prompt": []}),
    ("completions", {"prompt": ""}),
    ("completions", {"prompt": [[5], []]}),
    ("completions", {"n": 10**9}),
    ("completions", {"n": 17}),
    ("completions", {"stop_token_ids": [448]}),
    ("completions", {"seed": 2**64}),
    ("completions", {"priority": 2**40}),
    ("completions", {"logprobs": 21}),
    ("completions", {"model": "gpt"}),
    ("chat/completions", {"messages": []}),
    ("chat/completions", {"messages": [{"role": "wizard", "content": "a"}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": "a" * 5000}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ 1 / 0 }}"}),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}),
]


def send_bad(group: ServeGroup, path: str, fields: dict[str, Any]) -> None:
    base: dict[str, Any] = {"model": "recall", "max_tokens": 4}
    if path == "completions":
        base["prompt"] = "a"
    for stream in (False, True):
        content = json.dumps(base | fields | {"stream": stream})
        with group.client() as client:
            headers = {"content-type": "application/json"}
            answer = client.post(f"/v1/{path}", content=content, headers=headers)
        assert answer.status_code in {400, 404}, (fields, answer.status_code, answer.text)
        assert answer.json()["error"]["message"]


def read_stream(group: ServeGroup, prompt: list[int]) -> str:
    body = completion(prompt, max_tokens=LIMIT, stream=True)
    with group.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events.pop() == "[DONE]"
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def test_bad_requests_among_good_ones_harm_only_themselves(group: ServeGroup) -> None:
    tokens, model = recall_model.tokenizer(), recall_model.reference()
    prompts = [recall_model.encode_prompt(tokens, one) for one in recall_model.conversations(5, NUM_GOOD)]
    answers = [recall_model.generate(model, prompt, LIMIT) for prompt in prompts]
    expected = [tokens.decode(ids, skip_special_tokens=True) for ids in answers]
    good_done = threading.Event()

    def send_all_bad() -> int:
        rounds = 0
        while not rounds or not good_done.is_set():
            for path, fields in BAD:
                send_bad(group, path, fields)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(NUM_GOOD + 1) as pool:
        bad = pool.submit(send_all_bad)
        streams = list(pool.map(lambda prompt: read_stream(group, prompt), prompts))
        good_done.set()
        assert bad.result() >= 1
    assert streams == expected
    wait_until_free(group)
    assert group.process.poll() is None

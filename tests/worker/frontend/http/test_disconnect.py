import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from support.worlds.engine import say, say_forever
from support.worlds.frontend import Frontend, encode, start_frontend, wait_until

A = encode("a")[0]
SPECIAL = 1  # has no text
DISCONNECTED = 'lockstep_requests_total{outcome="disconnect"}'


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend() as running:
        yield running


@contextlib.contextmanager
def send_request(frontend: Frontend, path: str, **body: Any) -> Iterator[socket.socket]:
    port = int(frontend.url.rsplit(":", 1)[1])
    content = json.dumps({"model": "recall"} | body).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        )
        connection.sendall(head.encode() + b"\r\n" + content)
        yield connection


@pytest.mark.parametrize("token", [A, SPECIAL], ids=["text", "no text yet"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_goes_away_frees_everything_at_once(frontend: Frontend, stream: bool, n: int, token: int) -> None:
    frontend.engine.script = say_forever(token)
    before = frontend.metric(DISCONNECTED)
    first, cancelled = len(frontend.engine.requests), len(frontend.engine.cancelled)
    with send_request(frontend, "/v1/completions", prompt="COPY", n=n, stream=stream) as connection:
        wait_until(lambda: len(frontend.engine.running) == n, 10)
        if stream and token == A:
            assert connection.recv(1000)
    wait_until(lambda: not frontend.engine.running, 3)
    assert frontend.engine.cancelled[cancelled:] == [r.handle for r in frontend.engine.requests[first:]]
    frontend.wait_for_metric(DISCONNECTED, before + 1, 5)
    assert frontend.metric("lockstep_requests_in_flight") == 0


def test_a_client_that_is_gone_costs_the_others_nothing(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("a" * 300))
    messages = [{"role": "user", "content": "COPY"}]
    with send_request(frontend, "/v1/chat/completions", messages=messages, stream=True) as gone:
        gone.recv(10)
        with frontend.client() as client:
            body = {"model": "recall", "prompt": "COPY", "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as kept:
                lines = kept.iter_lines()
                next(lines)
                gone.close()
                assert sum('"text":"a"' in line for line in lines) > 100


def test_a_client_that_reads_slowly_gets_everything(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("é" * 300))
    with send_request(frontend, "/v1/completions", prompt=["COPY"] * 20, stream=True) as connection:
        wait_until(lambda: frontend.engine.requests and not frontend.engine.running, 20)
        received = b""
        while b"[DONE]" not in received:
            received += connection.recv(1 << 16)
    texts = [""] * 20
    for line in received.split(b"\n"):
        if line.startswith(b'data: {"'):
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] += choice["text"]
    assert texts == ["é" * 300] * 20


def test_tokens_and_times_are_counted(frontend: Frontend) -> None:
    names = ["prompt_tokens_total", "cached_prompt_tokens_total", "generated_tokens_total"]
    names += ["time_to_first_token_seconds_count", "inter_token_seconds_count", "request_seconds_count"]
    before = {name: frontend.metric(f"lockstep_{name}") for name in names}
    frontend.engine.script = say(encode("abcde"))
    frontend.engine.cached_tokens = 3
    frontend.complete(prompt="COPY ab", n=2)
    frontend.engine.cached_tokens = 0
    wait_until(lambda: frontend.metric("lockstep_requests_in_flight") == 0, 10)
    after = {name: frontend.metric(f"lockstep_{name}") - before[name] for name in names}
    assert list(after.values()) == [len(encode("COPY ab")), 3, 10, 1, 8, 1]


def test_the_gateways_gauges_follow_the_engine(frontend: Frontend) -> None:
    frontend.engine.script = say_forever(A)
    running = 'vllm:num_requests_running{model_name="recall"}'
    with send_request(frontend, "/v1/completions", prompt="COPY", n=3):
        frontend.wait_for_metric(running, 3, 10)
    frontend.wait_for_metric(running, 0, 10)
    assert frontend.metric('vllm:kv_cache_usage_perc{model_name="recall"}') == 0.1


def test_gateways_are_told_what_the_cache_is_like_once_the_engine_is_ready() -> None:
    with start_frontend(wait_ready=False, block_size=32, prefix_cache=False) as frontend:
        assert "cache_config_info{" not in frontend.client().get("/metrics").text
        frontend.engine.is_silent = False
        labels = 'block_size="32",enable_prefix_caching="False",model_name="recall",num_gpu_blocks="10"'
        frontend.wait_for_metric(f"vllm:cache_config_info{{{labels}}}", 1, 10)

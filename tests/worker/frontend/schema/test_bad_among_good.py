"""Bad requests of every kind between good ones that stream: each bad one is refused, no good one is harmed."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from lockstep_worker.wire.messages import FinishCode, NewRequest
from support.data.bad_requests import CHAT_FAULTS, COMPLETION_FAULTS, LIMITS
from support.worlds.engine import Script
from support.worlds.frontend import MODEL, MODEL_NAME, Frontend, encode, read_events, start_frontend, wait_until

TEXT = "k=4217 é你😀 " * 40
WITHOUT_TEXT = 1
NUM_GOOD = 4
TEMPLATE = """
{%- for message in messages -%}
{%- if message.content == 'raise' -%}{{ raise_exception('not this') }}
{%- elif message.content == 'divide' -%}{{ 1 / 0 }}
{%- elif message.content == 'recurse' -%}{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}
{%- else -%}{{ message.content }}
{%- endif -%}
{%- endfor -%}
"""
UNREADABLE = [b"", b"{", b'{"prompt": "\xff"}', b"[" * 50_000, b'{"seed": ' + b"9" * 5000 + b"}", b"a" * 500_000]


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    directory = tmp_path_factory.mktemp("model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    with start_frontend(model=str(directory), **LIMITS) as running:
        yield running


def body_of(fault: Any) -> dict[str, Any]:
    """The fields of one parameter set of a list of faults."""
    return dict(fault.values[0])


def bad_requests() -> list[tuple[str, bytes]]:
    completion: dict[str, Any] = {"model": MODEL_NAME, "prompt": "a", "stream": True}
    chat: dict[str, Any] = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "a"}], "stream": True}
    bad = [("/v1/completions", json.dumps(completion | body_of(fault)).encode()) for fault in COMPLETION_FAULTS]
    bad += [("/v1/chat/completions", json.dumps(chat | body_of(fault)).encode()) for fault in CHAT_FAULTS]
    for content in ("raise", "divide", "recurse"):
        messages = {"messages": [{"role": "user", "content": content}]}
        bad.append(("/v1/chat/completions", json.dumps(chat | messages).encode()))
    return bad + [(path, body) for path in ("/v1/completions", "/v1/chat/completions") for body in UNREADABLE]


def post(frontend: Frontend, request: tuple[str, bytes]) -> httpx.Response:
    with frontend.client(headers={"content-type": "application/json"}) as client:
        return client.post(request[0], content=request[1])


def speak_until(released: threading.Event) -> Script:
    """Return a script that says the text and does not end before the release."""

    def script(_request: NewRequest) -> Iterator[tuple[int, int]]:
        *most, last = encode(TEXT)
        for token in most:
            yield token, 0
        while not released.is_set():
            yield WITHOUT_TEXT, 0
        yield last, FinishCode.LENGTH

    return script


def test_bad_requests_harm_only_themselves(frontend: Frontend) -> None:
    bad = [request for request in bad_requests() if b'"stream_options": {}' not in request[1]]  # good in a stream
    released = threading.Event()
    frontend.engine.script = speak_until(released)
    with ThreadPoolExecutor(NUM_GOOD) as good_clients, ThreadPoolExecutor(4) as bad_clients:
        good: list[Future[httpx.Response]] = [
            good_clients.submit(frontend.complete if number % 2 else frontend.chat, stream=True)
            for number in range(NUM_GOOD)
        ]
        wait_until(lambda: len(frontend.engine.running) == NUM_GOOD, 20)
        replies = list(bad_clients.map(lambda request: post(frontend, request), bad))
        released.set()
    for (_, body), reply in zip(bad, replies, strict=True):
        assert reply.status_code in {400, 413}, (body[:200], reply.text)
        assert reply.json()["error"]["message"]
    assert len(frontend.engine.requests) == NUM_GOOD, "no bad request may reach the ranks"
    for future in good:
        choices = [event["choices"][0] for event in read_events(future.result().text)]
        assert "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices) == TEXT

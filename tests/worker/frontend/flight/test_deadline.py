"""A request that takes too long is cancelled; its client is told, and others are not touched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.worlds.engine import say, say_forever
from support.worlds.frontend import Frontend, encode, read_events, start_frontend, wait_until

A = encode("a")[0]
SPECIAL = 1  # has no text
LIMIT_S = 0.5
TIMED_OUT = 'lockstep_requests_total{outcome="timeout"}'


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend() as running:
        yield running


@pytest.fixture(scope="module")
def limited() -> Iterator[Frontend]:
    with start_frontend(request_timeout_s=LIMIT_S) as running:
        yield running


def ask(frontend: Frontend, timeout: str | None, **body: Any) -> httpx.Response:
    headers = {} if timeout is None else {"X-Request-Timeout": timeout}
    with frontend.client(headers=headers) as client:
        return client.post("/v1/completions", json={"model": "recall", "prompt": "COPY"} | body)


def check_cancelled(frontend: Frontend, before: float) -> None:
    wait_until(lambda: not frontend.engine.running, 5)
    frontend.wait_for_metric(TIMED_OUT, before + 1, 5)
    assert frontend.metric("lockstep_requests_in_flight") == 0


@pytest.mark.parametrize("n", [1, 3])
def test_a_whole_answer_that_takes_too_long_is_504_and_cancelled(frontend: Frontend, n: int) -> None:
    frontend.engine.script = say_forever(A)
    before, start = frontend.metric(TIMED_OUT), time.monotonic()
    reply = ask(frontend, "0.5", n=n)
    assert 0.5 <= time.monotonic() - start < 10
    assert reply.status_code == 504
    assert reply.json()["error"] == {
        "message": "The request did not end within 0.5 seconds.",
        "type": "timeout_error",
        "param": None,
        "code": "request_timeout",
    }
    check_cancelled(frontend, before)


def test_a_stream_that_has_begun_ends_with_an_error_event(frontend: Frontend) -> None:
    frontend.engine.script = say_forever(A)
    before = frontend.metric(TIMED_OUT)
    reply = ask(frontend, "0.5", stream=True)
    assert reply.status_code == 200
    *texts, last = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert json.loads(texts[0])["choices"][0]["text"]
    assert json.loads(last)["error"]["code"] == "request_timeout"
    check_cancelled(frontend, before)


def test_a_stream_without_text_yet_gets_the_status(frontend: Frontend) -> None:
    frontend.engine.script = say_forever(SPECIAL)
    before = frontend.metric(TIMED_OUT)
    assert ask(frontend, "0.3", stream=True).status_code == 504
    check_cancelled(frontend, before)


def test_a_request_in_time_is_not_touched_and_no_deadline_is_the_default(frontend: Frontend) -> None:
    frontend.engine.script = say(encode("Q=0731"))
    before = frontend.metric(TIMED_OUT)
    for timeout in ("20", None):
        assert ask(frontend, timeout).json()["choices"][0]["text"] == "Q=0731"
        assert len(read_events(ask(frontend, timeout, stream=True).text)) >= 1
    assert ask(frontend, "0.001", max_tokens=0, echo=True).status_code == 200
    assert frontend.metric(TIMED_OUT) == before


@pytest.mark.parametrize("timeout", [None, "100"], ids=["no header", "a client cannot ask for more"])
def test_the_servers_own_limit_holds(limited: Frontend, timeout: str | None) -> None:
    limited.engine.script = say_forever(A)
    before = limited.metric(TIMED_OUT)
    reply = ask(limited, timeout)
    assert (reply.status_code, "0.5 seconds" in reply.text) == (504, True)
    check_cancelled(limited, before)


def test_a_client_may_ask_for_less(limited: Frontend) -> None:
    limited.engine.script = say_forever(A)
    assert "within 0.1 seconds" in ask(limited, "0.1").text


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon", ""])
def test_a_wrong_header_is_refused_by_name(frontend: Frontend, timeout: str) -> None:
    reply = ask(frontend, timeout)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].lower() == "x-request-timeout"


def test_the_openapi_document_names_the_header(frontend: Frontend) -> None:
    with frontend.client() as client:
        operation = client.get("/openapi.json").json()["paths"]["/v1/chat/completions"]["post"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["X-Request-Timeout"]
    assert "504" in operation["responses"]

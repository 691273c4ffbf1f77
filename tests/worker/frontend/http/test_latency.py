"""What one client does holds up no other, and no answer waits for an acknowledgement of the one before."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.worlds.frontend import MODEL_NAME, Frontend, start_frontend

DELAYED_ACK_S = 0.04
"""What a client's kernel may wait before it acknowledges; Nagle's algorithm makes the server wait for it."""
HUGE = "ab " * 400_000


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    with start_frontend() as running:
        yield running


def time_health(frontend: Frontend, until: threading.Event) -> list[float]:
    """Ask again and again over one connection, at least 40 times; return what each answer took."""
    seconds: list[float] = []
    with frontend.client() as client:
        while len(seconds) < 40 or not until.is_set():
            start = time.perf_counter()
            assert client.get("/health").status_code == 200
            seconds.append(time.perf_counter() - start)
            time.sleep(0.002)
    return seconds


def test_answers_on_a_kept_connection_do_not_wait(frontend: Frontend) -> None:
    done = threading.Event()
    done.set()
    assert statistics.median(time_health(frontend, done)) < DELAYED_ACK_S / 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/completions", {"prompt": HUGE}, id="text"),
        pytest.param("/v1/chat/completions", {"messages": [{"role": "user", "content": HUGE}]}, id="message"),
        pytest.param("/tokenize", {"prompt": HUGE}, id="tokenize"),
    ],
)
def test_a_huge_text_holds_up_nobody(frontend: Frontend, path: str, body: dict[str, Any]) -> None:
    ended, seconds = threading.Event(), []

    def post() -> None:
        with frontend.client() as client:
            start = time.perf_counter()
            client.post(path, json={"model": MODEL_NAME} | body)
            seconds.append(time.perf_counter() - start)
        ended.set()

    thread = threading.Thread(target=post)
    thread.start()
    longest = max(time_health(frontend, ended))
    thread.join()
    assert longest < seconds[0] / 2

"""An answer leaves at once, and does not wait until the client has acknowledged the one before."""

from __future__ import annotations

import statistics
import time

from support.frontend import start_frontend

DELAYED_ACK_S = 0.04
"""What a client's kernel may wait before it acknowledges; Nagle's algorithm makes the server wait for it."""


def test_answers_on_a_kept_connection_do_not_wait() -> None:
    seconds = []
    with start_frontend() as frontend, frontend.client() as client:
        for _ in range(40):
            start = time.perf_counter()
            assert client.get("/health").status_code == 200
            seconds.append(time.perf_counter() - start)
    assert statistics.median(seconds) < DELAYED_ACK_S / 2

"""A rank that stops or dies takes the whole group with it, in bounded time, and whoever waits for an answer is told."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import httpx
import pytest

from lockstep_worker import contract
from support.serve_group import ServeGroup, completion, is_alive, serve_group, wait_until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]
TIMEOUT_S = 4.0


def fail_under_load(group: ServeGroup, fail: Callable[[], None]) -> tuple[str, float]:
    """Break the group in the middle of a stream; return how the stream ended and after how many seconds."""
    body = completion("COPY ab", max_tokens=900, ignore_eos=True, stream=True)
    with group.client() as client, client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        assert "text" in next(lines)
        fail()
        start = time.monotonic()
        last = ""
        try:
            for line in lines:
                last = line or last
        except httpx.TransportError as error:
            raise AssertionError(f"the stream was cut after {last!r}:\n{group.log}") from error
    wait_until(lambda: not any(is_alive(pid) for pid in group.pids), 60, lambda: group.log)
    return last, time.monotonic() - start


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_in_a_step_ends_the_group_in_time(rank: int) -> None:
    with serve_group(hang_timeout=TIMEOUT_S) as group:
        pid = group.rank_pids()[rank]
        last, seconds = fail_under_load(group, lambda: os.kill(pid, signal.SIGSTOP))
        assert seconds < TIMEOUT_S + 5
        assert group.wait_end(bound_s=10) == contract.EXIT_HANG, group.log
        error = json.loads(last.removeprefix("data: "))["error"]
        assert f"rank {1 - rank}: no progress" in error["message"]
        assert error["code"] == "engine_down"


def test_a_rank_that_is_killed_ends_the_group_at_once() -> None:
    with serve_group(hang_timeout=600) as group:
        pid = group.rank_pids()[1]
        last, seconds = fail_under_load(group, lambda: os.kill(pid, signal.SIGKILL))
        assert seconds < 10
        # The peer may notice its loss in the middle of a collective, and say so, before mpirun does.
        assert group.wait_end(bound_s=10) in (128 + signal.SIGKILL, contract.EXIT_RANK_CRASH), group.log
        assert "rank 1 with PID" in group.log
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_down"

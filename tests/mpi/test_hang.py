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
from lockstep_worker.health.abort import Failure
from support.ranks.serve_group import ServeGroup, completion, is_alive, serve_group, wait_until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]
TIMEOUT_S = 4.0
STUCK = "support.ranks.stuck_rank"


def fail_under_load(group: ServeGroup, fail: Callable[[], object] = lambda: None, n: int = 1) -> tuple[str, float]:
    """Break the group in the middle of a stream; return how the stream ended and after how many seconds."""
    body = completion("COPY ab", max_tokens=900, ignore_eos=True, stream=True, n=n, temperature=float(n > 1))
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


def error_of(last: str) -> str:
    """The message of the error event that ended a stream."""
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "engine_down"
    return str(error["message"]).removeprefix("The engine is down: ")


def blamed_by(group: ServeGroup) -> int | None:
    """Whom the first rank that spoke blames; that is what the termination message repeats.

    mpirun continues a stopped rank before it kills it, so that rank may speak too, and late.
    """
    failures = [failure for line in group.output if (failure := Failure.from_line(line))]
    assert failures, group.log
    return failures[0].rank


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_in_a_step_is_named_and_ends_the_group_in_time(rank: int) -> None:
    with serve_group(hang_timeout=TIMEOUT_S) as group:
        pid = group.rank_pids()[rank]
        last, seconds = fail_under_load(group, lambda: os.kill(pid, signal.SIGSTOP))
        assert seconds < TIMEOUT_S + 5
        assert group.wait_end(bound_s=10) == contract.EXIT_HANG, group.log
        assert error_of(last).startswith(f"rank {rank} does not answer: rank {1 - rank} saw no progress for "), (
            group.log
        )
        assert blamed_by(group) == rank


def test_a_rank_that_is_stuck_in_its_own_code_is_named_by_whoever_speaks_first() -> None:
    """It answers, and says itself that it is behind."""
    group = ServeGroup(
        hang_timeout=TIMEOUT_S, tensor_parallel=1, data_parallel=2, routing="least-loaded", rank_module=STUCK
    )
    try:
        group.wait_ready()
        last, _ = fail_under_load(group, n=2)  # one for each replica
        assert group.wait_end(bound_s=10) == contract.EXIT_HANG, group.log
        assert error_of(last).startswith("rank 1 is stuck in the forward of step "), group.log
        assert blamed_by(group) == 1
    finally:
        group.close()


def test_nobody_is_blamed_when_all_stand_in_the_same_forward() -> None:
    """One rank is stuck in it, the other waits for it in a collective of the model: nothing tells them apart."""
    group = ServeGroup(hang_timeout=TIMEOUT_S, rank_module=STUCK)
    try:
        group.wait_ready()
        last, _ = fail_under_load(group)
        assert group.wait_end(bound_s=10) == contract.EXIT_HANG, group.log
        assert error_of(last).startswith("no rank stands out (all are in the forward of step "), group.log
        assert blamed_by(group) is None
    finally:
        group.close()


def test_a_rank_that_is_killed_ends_the_group_at_once() -> None:
    with serve_group(hang_timeout=600) as group:
        pid = group.rank_pids()[1]
        last, seconds = fail_under_load(group, lambda: os.kill(pid, signal.SIGKILL))
        assert seconds < 10
        # The peer may notice its loss in the middle of a collective, and say so, before mpirun does.
        assert group.wait_end(bound_s=10) in (128 + signal.SIGKILL, contract.EXIT_RANK_CRASH), group.log
        assert "rank 1 with PID" in group.log
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_down"

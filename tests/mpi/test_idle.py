"""An idle group sleeps, nobody takes it for hung, and it wakes; without the pause it is taken for hung."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from lockstep_worker import contract
from support.ranks.serve_group import START_BOUND_S, ServeGroup, cpu_seconds, serve_group, wait_until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]
TIMEOUT_S = 2.0
IDLE_S = 3 * TIMEOUT_S + 1


@pytest.fixture(scope="module")
def group() -> Iterator[ServeGroup]:
    with serve_group(hang_timeout=TIMEOUT_S) as group:
        group.complete("COPY ab", max_tokens=1)  # the first forward takes longer than all later ones
        yield group


def test_idling_for_three_times_the_hang_timeout_costs_little_and_trips_nobody(group: ServeGroup) -> None:
    pids = group.rank_pids()
    before = {rank: cpu_seconds(pid) for rank, pid in pids.items()}
    start = time.monotonic()
    time.sleep(IDLE_S)
    elapsed = time.monotonic() - start
    shares = {rank: (cpu_seconds(pid) - before[rank]) / elapsed for rank, pid in pids.items()}
    assert group.process.poll() is None, group.log
    assert max(shares.values()) < 0.05, shares
    assert group.complete("COPY ab", max_tokens=4)["usage"]["completion_tokens"] > 0
    assert "hang" not in group.log


def test_a_rank_that_is_stopped_while_the_group_idles_is_named_and_ends_the_group(group: ServeGroup) -> None:
    """The shared group's last test: it ends it."""
    pids = group.rank_pids()
    os.kill(pids[1], signal.SIGSTOP)
    assert group.wait_end(bound_s=TIMEOUT_S + 5) == contract.EXIT_HANG, group.log
    assert "rank 1 does not answer: rank 0 saw no beat of the group while paused (idle)" in group.log


def test_without_the_pause_the_same_idling_is_taken_for_a_hang() -> None:
    group = ServeGroup(hang_timeout=TIMEOUT_S, rank_module="support.ranks.unpaused_rank")
    try:
        wait_until(lambda: "no progress" in group.log, START_BOUND_S, lambda: group.log)
        assert group.wait_end(bound_s=10) == contract.EXIT_HANG
        assert "0 running, 0 waiting" in group.log  # in the park, not in a step
    finally:
        group.close()

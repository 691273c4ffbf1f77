"""An idle group sleeps, nobody takes it for hung, and it wakes; without the pause it is taken for hung."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support.serve_group import ServeGroup, cpu_seconds, serve_group

from lockstep_worker import contract

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]
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


def test_without_the_pause_the_same_idling_is_taken_for_a_hang() -> None:
    with serve_group(hang_timeout=TIMEOUT_S, rank_module="support.unpaused_rank") as group:
        assert group.wait_end(bound_s=IDLE_S + 10) == contract.EXIT_HANG
        assert "no progress" in group.log

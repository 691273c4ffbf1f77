"""What runs took of their device and what it idled between them."""

from __future__ import annotations

import time

import pytest
import torch

from lockstep_worker.runner import marks
from lockstep_worker.runner.marks import Marks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_each_run_is_told_one_run_late_with_the_gap_before_it(clock: list[float]) -> None:
    kept = Marks(torch.device("cpu"))
    in_flight, told = None, []
    for seconds, gap in ((1, 0.5), (2, 0.25), (4, 0.125), (8, 0.5), (16, 0.5), (32, 0.5), (64, 0.5)):
        mark = kept.begin()
        clock[0] += seconds
        kept.end(mark)
        clock[0] += gap
        if in_flight is not None:
            kept.wait(in_flight)
            told.append(kept.read(in_flight))
        in_flight = mark
    assert [spent.run_s for spent in told] == [1, 2, 4, 8, 16, 32]
    assert [spent.idle_s for spent in told] == [None, 0.5, 0.25, 0.125, 0.5, 0.5]


def test_a_mark_that_was_set_again_is_not_told_of() -> None:
    kept = Marks(torch.device("cpu"))
    first = kept.begin()
    for _ in range(marks._RING):
        kept.begin()
    with pytest.raises(AssertionError, match="set again"):
        kept.read(first)


@pytest.mark.gpu
def test_events_tell_a_device_that_waits_from_one_that_works() -> None:
    device = torch.device("cuda")
    kept, seen = Marks(device), []
    work = torch.randn(4096, 4096, device=device)
    torch.cuda.synchronize()
    for pause_s in (0.0, 0.0, 0.05, 0.0):
        time.sleep(pause_s)
        mark = kept.begin()
        for _ in range(20):
            work @ work
        kept.end(mark)
        kept.wait(mark)
        seen.append(kept.read(mark))
    assert seen[0].idle_s is None
    assert all(spent.run_s > 1e-4 for spent in seen)
    idle = [spent.idle_s or 0.0 for spent in seen[1:]]
    assert idle[1] > 0.045 > max(idle[0], idle[2])

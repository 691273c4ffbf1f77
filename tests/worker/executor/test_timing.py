"""The bubble and the phases, on a clock that the test moves."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from lockstep_worker.executor import timing
from lockstep_worker.executor.timing import Laps, StepTimer
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.metrics.tables import PATHS, PHASES
from lockstep_worker.phase import Phase
from lockstep_worker.runner.marks import Spent


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "_clock", clock)
    return clock


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"lockstep_{name}", {"rank": "0", **labels}) or 0.0


def test_the_bubble_is_what_the_device_idled_between_two_runs(registry: CollectorRegistry) -> None:
    timer = StepTimer(RankMetrics(registry, 0))
    for spent in (Spent(7, None), Spent(2, 0.5), None, Spent(1, 0.25)):
        timer.ran(spent)
    assert value(registry, "iteration_bubble_seconds_count") == 2
    assert value(registry, "iteration_bubble_seconds_sum") == 0.75
    assert value(registry, "iteration_device_seconds_sum") == 10


def test_an_idle_device_is_no_bubble(registry: CollectorRegistry) -> None:
    timer = StepTimer(RankMetrics(registry, 0))
    timer.ran(Spent(1, None))
    timer.park()
    timer.ran(Spent(1, 1000))
    assert value(registry, "iteration_bubble_seconds_count") == 0
    timer.ran(Spent(1, 0.5))
    assert value(registry, "iteration_bubble_seconds_sum") == 0.5


def test_each_path_of_an_update_has_its_own_time_and_one_without_rows_none(
    clock: Clock, registry: CollectorRegistry
) -> None:
    paths = Laps(RankMetrics(registry, 0).sampler_update_seconds)
    for laps in ([("batched", 2)], [("per_request", 0.5), ("batched", 1), ("per_request", 8)], []):
        paths.begin()
        for path, seconds in laps:
            clock.now += seconds
            paths.mark(path)
        clock.now += 100
        paths.finish()
    sums = [value(registry, "sampler_update_seconds_sum", path=path) for path in PATHS]
    counts = [value(registry, "sampler_update_seconds_count", path=path) for path in PATHS]
    assert (sums, counts) == ([3, 8.5], [2, 1])


LAPS = ((Phase.ROUTE, 1), (Phase.FORWARD, 2), (Phase.EXCHANGE, 0.5), (Phase.PUBLISH, 4), (Phase.EXCHANGE, 0.25))


def test_each_phase_is_observed_once_a_step_with_all_its_parts(clock: Clock, registry: CollectorRegistry) -> None:
    timer = StepTimer(RankMetrics(registry, 0))
    for _ in range(2):
        timer.begin()
        for phase, seconds in LAPS:
            clock.now += seconds
            timer.leave(phase)
        timer.finish()
        clock.now += 100
    assert value(registry, "iteration_seconds_sum") == 15.5
    sums = {phase: value(registry, "iteration_host_seconds_sum", phase=phase) for phase in PHASES}
    assert sums == {"route": 2, "forward": 4, "exchange": 1.5, "publish": 8, "schedule": 0, "collect": 0, "update": 0}
    assert value(registry, "iteration_host_seconds_count", phase="exchange") == 2

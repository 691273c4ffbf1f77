"""The bubble and the phases, on a clock that the test moves."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from lockstep_worker.executor import timing
from lockstep_worker.executor.timing import Laps, StepTimer
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.metrics.tables import PATHS, PHASES
from lockstep_worker.phase import Phase


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


def forward(timer: StepTimer, clock: Clock, seconds: float) -> None:
    timer.forward(end_of_forward=False)
    clock.now += seconds
    timer.forward(end_of_forward=True)


def test_the_bubble_is_the_time_between_two_forwards_and_not_the_forward(
    clock: Clock, registry: CollectorRegistry
) -> None:
    timer = StepTimer(RankMetrics(registry, 0))
    for gap in (0.5, 0.25, 0.125):
        forward(timer, clock, 7)
        clock.now += gap
    assert value(registry, "iteration_bubble_seconds_count") == 2
    assert value(registry, "iteration_bubble_seconds_sum") == 0.75


def test_an_idle_device_is_no_bubble(clock: Clock, registry: CollectorRegistry) -> None:
    timer = StepTimer(RankMetrics(registry, 0))
    forward(timer, clock, 1)
    timer.park()
    clock.now += 1000
    forward(timer, clock, 1)
    assert value(registry, "iteration_bubble_seconds_count") == 0


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

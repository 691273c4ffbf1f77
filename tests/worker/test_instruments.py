"""No value and no label can make a metric raise, or spoil what it counted before."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lockstep_worker.metrics import FrontendMetrics, RankMetrics

WRONG = [-1, -0.5, math.nan, math.inf, -math.inf, np.float32("nan"), np.int64(-3)]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"lockstep_{name}", {"rank": "0", **labels})


@pytest.mark.parametrize("wrong", WRONG)
def test_a_value_that_makes_no_sense_is_dropped(registry: CollectorRegistry, wrong: Any) -> None:
    metrics = RankMetrics(registry, 0)
    for amount in (2, wrong, np.int64(3)):
        metrics.step_tokens_total.inc(amount)
        metrics.iteration_seconds.observe(amount)
        metrics.collective_wait_seconds[("exchange",)].observe(amount)
    metrics.requests_running.set(wrong)
    assert value(registry, "step_tokens_total") == 5
    assert (value(registry, "iteration_seconds_sum"), value(registry, "iteration_seconds_count")) == (5, 2)
    assert value(registry, "collective_wait_seconds_count", op="exchange") == 2
    generate_latest(registry)


def test_a_label_that_nobody_foresaw_is_counted_under_its_name(registry: CollectorRegistry) -> None:
    metrics = RankMetrics(registry, 0)
    for _ in range(2):
        metrics.sampler_requests_total[("per_request", "new")].inc()
        metrics.collectives_total[("exchange", "lost")].inc()
    assert value(registry, "sampler_requests_total", path="per_request", reason="new") == 2
    assert value(registry, "collectives_total", op="exchange", outcome="lost") == 2
    frontend = FrontendMetrics(CollectorRegistry(), "recall")
    frontend.requests_total["abandoned",].inc()
    assert frontend.requests_total["abandoned",]._value.get() == 1

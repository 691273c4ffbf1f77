"""No value and no label can make a metric raise, or spoil what it counted before."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lockstep_worker.metrics.families import FrontendMetrics, RankMetrics
from lockstep_worker.metrics.instruments import Definition, Family

WRONG = [-1, -0.5, math.nan, math.inf, -math.inf, np.float32("nan"), np.int64(-3)]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"lockstep_{name}", {"rank": "0", **labels})


def test_the_text_is_that_of_the_client_librarys_own_metrics(registry: CollectorRegistry) -> None:
    bounds = (0.00005, 0.1, 1, 2.5, 10)
    table = {
        "steps_total": Definition("counter", "Steps.", ("kind",)),
        "blocks": Definition("gauge", 'Of a "pool".'),
        "wait_seconds": Definition("histogram", "A wait.", ("op",), bounds),
    }
    ours = Family(registry, {"rank": "3"}, table)
    steps, blocks = ours.children("steps_total", [("empty",)]), ours.one("blocks")
    waits = ours.children("wait_seconds")
    theirs = CollectorRegistry()
    their_steps = prometheus_client.Counter("lockstep_steps_total", "Steps.", ("rank", "kind"), registry=theirs)
    their_steps.labels("3", "empty")
    their_blocks = prometheus_client.Gauge("lockstep_blocks", 'Of a "pool".', ("rank",), registry=theirs).labels("3")
    their_waits = prometheus_client.Histogram(
        "lockstep_wait_seconds", "A wait.", ("rank", "op"), registry=theirs, buckets=bounds
    )
    for counters in (steps["mixed",], their_steps.labels("3", "mixed")):
        counters.inc()
        counters.inc(2.5)
    for gauge in (blocks, their_blocks):
        gauge.set(7)
        gauge.inc(3)
        gauge.dec()
    for op in ("exchange", "a\\b\n"):
        for wait in (waits[op,], their_waits.labels("3", op)):
            for seconds in (0, 0.00005, 0.05, 0.1, 0.100001, 1, 3, 10, 10.5, 1e9):
                wait.observe(seconds)
    assert lines(registry) == lines(theirs)


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_value_that_makes_no_sense_is_dropped(registry: CollectorRegistry, wrong: Any) -> None:
    metrics = RankMetrics(registry, 0)
    amounts: tuple[Any, ...] = (2, wrong, np.int64(3))
    for amount in amounts:
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
    assert frontend.requests_total["abandoned",].value == 1

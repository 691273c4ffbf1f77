"""The metrics of a rank, of its hang detector and of the frontend, made from `tables` on a given registry."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lockstep_worker.contract import METRIC_PREFIX
from lockstep_worker.metrics.instruments import Counter, Family, Gauge, Histogram
from lockstep_worker.metrics.tables import (
    EAGER_REASONS,
    FRONTEND_METRICS,
    GATEWAY_METRICS,
    HANG_METRICS,
    KINDS,
    OPS,
    OUTCOMES,
    PATHS,
    PHASES,
    RANK_METRICS,
    STARTUP_PARTS,
)
from lockstep_worker.wire.params import REASONS

Labels = tuple[str, ...]
"""A child's own label values."""


class RankMetrics:
    """One rank's metrics of the step loop. Every series carries `rank`.

    Args:
        registry: a fresh registry of this process.
        rank: this rank's number in its group.
    """

    def __init__(self, registry: CollectorRegistry, rank: int) -> None:
        family = Family(registry, {"rank": str(rank)}, RANK_METRICS)
        one, children, product = family.one, family.children, itertools.product
        # The annotations say which kind the table makes.
        self.iteration_seconds: Histogram = one("iteration_seconds")
        self.iteration_bubble_seconds: Histogram = one("iteration_bubble_seconds")
        self.iteration_device_seconds: Histogram = one("iteration_device_seconds")
        self.iteration_batch_size: Histogram = one("iteration_batch_size")
        self.rank_skew_seconds: Histogram = one("rank_skew_seconds")
        self.requests_running: Gauge = one("requests_running")
        self.requests_waiting: Gauge = one("requests_waiting")
        self.queue_seconds: Histogram = one("queue_seconds")
        self.preemptions_total: Counter = one("preemptions_total")
        self.kv_blocks: Gauge = one("kv_blocks")
        self.kv_blocks_used: Gauge = one("kv_blocks_used")
        self.prefix_cache_query_tokens_total: Counter = one("prefix_cache_query_tokens_total")
        self.prefix_cache_hit_tokens_total: Counter = one("prefix_cache_hit_tokens_total")
        self.step_tokens_total: Counter = one("step_tokens_total")
        self.graph_replays_total: Counter = one("graph_replays_total")
        self.graph_padded_rows_total: Counter = one("graph_padded_rows_total")
        self.eager_steps_total: Mapping[Labels, Counter] = children("eager_steps_total", product(EAGER_REASONS))
        self.forward_info: Mapping[Labels, Gauge] = children("forward_info")
        self.startup_seconds: Mapping[Labels, Gauge] = children("startup_seconds", product(STARTUP_PARTS))
        self.iteration_host_seconds: Mapping[Labels, Histogram] = children("iteration_host_seconds", product(PHASES))
        self.iterations_total: Mapping[Labels, Counter] = children("iterations_total", product(KINDS))
        self.collectives_total: Mapping[Labels, Counter] = children(
            "collectives_total", [("exchange", "executed"), *product(OPS[1:], ("executed", "skipped"))]
        )
        self.collective_bytes_total: Mapping[Labels, Counter] = children("collective_bytes_total", product(OPS))
        self.collective_wait_seconds: Mapping[Labels, Histogram] = children("collective_wait_seconds", product(OPS))
        self.sampler_update_seconds: Mapping[Labels, Histogram] = children("sampler_update_seconds", product(PATHS))
        self.sampler_requests_total: Mapping[Labels, Counter] = children(
            "sampler_requests_total", [(PATHS[0], ""), *product(PATHS[1:], REASONS)]
        )


class HangCollector(Collector):
    """Reads the hang detector at scrape, so that a pause that is still running is counted and the loop pays nothing.

    Args:
        read: returns (armed, last progress as Unix seconds or 0, paused seconds by reason, trips).
        rank: this rank's number in its group.
    """

    def __init__(self, read: Callable[[], tuple[bool, float, Mapping[str, float], int]], rank: int) -> None:
        self._read = read
        self._rank = str(rank)

    def collect(self) -> Iterable[Metric]:
        """Yield the four families of `HANG_METRICS`."""
        armed, last_progress, paused, trips = self._read()
        values: dict[str, dict[tuple[str, ...], float]] = {
            "hang_detector_armed": {(): float(armed)},
            "hang_detector_last_progress_timestamp_seconds": {(): last_progress},
            "hang_detector_paused_seconds_total": {(reason,): seconds for reason, seconds in paused.items()},
            "hang_detector_trips_total": {(): float(trips)},
        }
        for name, definition in HANG_METRICS.items():
            labels = ("rank", *definition.labels)
            make = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
            family = make(METRIC_PREFIX + name, definition.help, labels=labels)
            for combination, value in values[name].items():
                family.add_metric([self._rank, *combination], value)
            yield family


class FrontendMetrics:
    """The frontend's metrics: what the people who ask the API see.

    Args:
        registry: a fresh registry of this process.
        model_name: the served name, a label of the gateways' series only.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        family = Family(registry, {}, FRONTEND_METRICS)
        self.requests_in_flight: Gauge = family.one("requests_in_flight")
        self.time_to_first_token_seconds: Histogram = family.one("time_to_first_token_seconds")
        self.inter_token_seconds: Histogram = family.one("inter_token_seconds")
        self.request_seconds: Histogram = family.one("request_seconds")
        self.prompt_tokens_total: Counter = family.one("prompt_tokens_total")
        self.cached_prompt_tokens_total: Counter = family.one("cached_prompt_tokens_total")
        self.generated_tokens_total: Counter = family.one("generated_tokens_total")
        self.requests_total: Mapping[Labels, Counter] = family.children("requests_total", itertools.product(OUTCOMES))
        self.http_responses_total: Mapping[Labels, Counter] = family.children("http_responses_total")
        gateway = Family(registry, {"model_name": model_name}, GATEWAY_METRICS)
        self.gateway_running: Gauge = gateway.one("vllm:num_requests_running")
        self.gateway_waiting: Gauge = gateway.one("vllm:num_requests_waiting")
        self.gateway_kv_usage: Gauge = gateway.one("vllm:kv_cache_usage_perc")
        self._gateway_cache: Mapping[Labels, Gauge] = gateway.children("vllm:cache_config_info")

    def show_cache(self, *, block_size: int, num_blocks: int, prefix_cache: bool) -> None:
        """Tell gateways what the KV cache is like; `num_blocks` over all data replicas."""
        self._gateway_cache[str(block_size), str(num_blocks), str(prefix_cache)].set(1)

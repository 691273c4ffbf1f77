"""Every metric of a worker: name, unit, labels and help, in one file.

Metrics are built on a registry that is passed in; how one is made and why it never raises stands in `instruments`.
`python -m lockstep_worker.metrics` prints docs/metrics.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lockstep_worker.contract import METRIC_PREFIX
from lockstep_worker.instruments import Counter, Definition, Family, Gauge, Histogram

Labels = tuple[str, ...]
"""A child's own label values."""
PHASES = ("exchange", "admit", "schedule", "launch", "collect", "update", "publish")
KINDS = ("empty", "decode", "prefill", "mixed")
OPS = ("exchange", "payload", "prefix_matches")
PATHS = ("batched", "per_request")
REASONS = ("logprobs", "stop_words", "draft", "beam", "grammar")
OUTCOMES = ("stop", "length", "cancelled", "disconnect", "timeout", "refused", "error")

_LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


RANK_METRICS: Mapping[str, Definition] = {
    "iteration_seconds": Definition("histogram", "Wall time of one step that had work, from its start to its end."),
    "iteration_bubble_seconds": Definition(
        "histogram",
        "Time the device sat idle between two steps while there was work: from the end of one forward to the start of "
        "the next. One observation per step with work. On a CPU the host's gap between two forwards.",
    ),
    "iteration_host_seconds": Definition("histogram", "Host time of a step with work, by phase.", ("phase",)),
    "iterations_total": Definition("counter", "Steps, by what they ran; empty steps ran no forward.", ("kind",)),
    "iteration_batch_size": Definition("histogram", "Sequences in a forward.", buckets=_SIZE_BUCKETS),
    "collectives_total": Definition(
        "counter",
        "Collectives of the step loop, by operation: executed, or skipped because the exchange said that there was "
        "nothing to send.",
        ("op", "outcome"),
    ),
    "collective_bytes_total": Definition("counter", "Bytes this rank contributed to collectives.", ("op",)),
    "collective_wait_seconds": Definition(
        "histogram", "Time spent waiting for a collective of a step with work, peers' lateness included.", ("op",)
    ),
    "rank_skew_seconds": Definition(
        "histogram", "Last rank's entry into the exchange minus the first's, for steps with work (wall clocks)."
    ),
    "sampler_requests_total": Definition(
        "counter",
        "Sampled rows, by the path that updated them; `reason` says why a row was not eligible for the batched path.",
        ("path", "reason"),
    ),
    "sampler_update_seconds": Definition(
        "histogram",
        "Host time of one step's update of requests, by path; a path without rows is not observed. To part the rows "
        "and to join them again is the per-request path's work.",
        ("path",),
    ),
    "requests_running": Definition("gauge", "Requests that hold a slot."),
    "requests_waiting": Definition("gauge", "Admitted requests that wait for a slot or for blocks."),
    "queue_seconds": Definition(
        "histogram",
        "From a request's admission to its first slot; on ranks that publish tokens, the first of each data replica.",
        buckets=_LATENCY_BUCKETS,
    ),
    "preemptions_total": Definition("counter", "Running requests put back to waiting because blocks ran out."),
    "kv_blocks": Definition("gauge", "Blocks in the pool."),
    "kv_blocks_used": Definition("gauge", "Blocks that running requests hold."),
    "prefix_cache_query_tokens_total": Definition(
        "counter",
        "Prompt tokens looked up in the prefix cache: of each request once, when it gets its first slot. Waiting for "
        "blocks, preemption and routing add nothing, nor does a cache that is off.",
    ),
    "prefix_cache_hit_tokens_total": Definition(
        "counter",
        "Prompt tokens found in the prefix cache and so not computed, of those looked up: whole blocks, and never the "
        "last token of a prompt.",
    ),
    "step_tokens_total": Definition("counter", "Tokens computed by forwards, prefill and decode together."),
}
HANG_METRICS: Mapping[str, Definition] = {
    "hang_detector_armed": Definition("gauge", "1 while a lapse of progress would count as a hang."),
    "hang_detector_last_progress_timestamp_seconds": Definition("gauge", "Unix time of the last checkpoint."),
    "hang_detector_paused_seconds_total": Definition(
        "counter", "Time the detector was paused, by reason, the running pause included.", ("reason",)
    ),
    "hang_detector_trips_total": Definition("counter", "Hangs detected; the group ends at the first."),
}
FRONTEND_METRICS: Mapping[str, Definition] = {
    "requests_total": Definition("counter", "Accepted requests by outcome; each ends in exactly one.", ("outcome",)),
    "http_responses_total": Definition(
        "counter",
        "Answers of the API's server by route and status. A request that was refused before it was accepted, such as "
        "by a full queue with 429, counts here only.",
        ("path", "code"),
    ),
    "requests_in_flight": Definition("gauge", "Requests accepted and not ended."),
    "time_to_first_token_seconds": Definition(
        "histogram", "From a request's arrival to its first token.", buckets=_LATENCY_BUCKETS
    ),
    "inter_token_seconds": Definition("histogram", "Between two tokens of a request.", buckets=_LATENCY_BUCKETS),
    "request_seconds": Definition("histogram", "From a request's arrival to its end.", buckets=_LATENCY_BUCKETS),
    "prompt_tokens_total": Definition("counter", "Prompt tokens of accepted requests, each prompt once."),
    "cached_prompt_tokens_total": Definition(
        "counter",
        "Prompt tokens of accepted requests that came from the ranks' prefix caches; counted when a request gets its "
        "slot, each prompt once.",
    ),
    "generated_tokens_total": Definition("counter", "Generated tokens that requests received."),
}
GATEWAY_METRICS: Mapping[str, Definition] = {
    "vllm:num_requests_running": Definition("gauge", "Requests running, under the name that gateways expect."),
    "vllm:num_requests_waiting": Definition("gauge", "Requests waiting, under the name that gateways expect."),
    "vllm:kv_cache_usage_perc": Definition("gauge", "Share of blocks in use, 0 to 1, under the gateways' name."),
    "vllm:cache_config_info": Definition(
        "gauge",
        "Always 1; the labels say how many tokens a KV block has, how many blocks all data replicas have together, and "
        "whether the prefix cache is on (`True` or `False`). Served from the moment that the engine is ready.",
        ("block_size", "num_gpu_blocks", "enable_prefix_caching"),
    ),
}


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


def document() -> str:
    """Render docs/metrics.md."""
    lines = ["# Metrics", "", "Generated by `python -m lockstep_worker.metrics`; a test keeps it true.", ""]
    sections = (
        (
            "Ranks",
            "Each rank serves these at its metrics port; every series carries `rank`.\n"
            "Ranks of one data replica serve the same requests and count them alike: do not add them up.",
            RANK_METRICS,
        ),
        ("Hang detector", "Each rank; read at scrape.", HANG_METRICS),
        ("Frontend", "Rank 0's frontend serves these at `/metrics` of the API's port.", FRONTEND_METRICS),
        ("Gateways", "Also the frontend, with `model_name`.", GATEWAY_METRICS),
    )
    for title, text, table in sections:
        lines += [f"## {title}", "", text, "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        for name, definition in table.items():
            full = name if ":" in name else METRIC_PREFIX + name
            labels = ", ".join(f"`{label}`" for label in definition.labels) or ""
            lines.append(f"| `{full}` | {definition.kind} | {labels} | {definition.help} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(document(), end="")

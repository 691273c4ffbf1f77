"""Every metric of a worker: name, unit, labels and help, in one file. `families` makes them, `page` documents them."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep_worker.metrics.instruments import Definition
from lockstep_worker.phase import STEP_PHASES

PHASES = tuple(phase.label for phase in STEP_PHASES)
KINDS = ("empty", "decode", "prefill", "mixed")
OPS = ("exchange", "payload", "prefix_matches")
PATHS = ("batched", "per_request")
EAGER_REASONS = ("no_graphs", "empty", "prefill", "drafts", "rows", "uncaptured")
STARTUP_PARTS = ("load", "measure", "capture")
OUTCOMES = ("stop", "length", "cancelled", "disconnect", "timeout", "refused", "error")

_LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


RANK_METRICS: Mapping[str, Definition] = {
    "iteration_seconds": Definition("histogram", "Wall time of one step that had work, from its start to its end."),
    "iteration_bubble_seconds": Definition(
        "histogram",
        "Time the device sat idle between two steps while there was work: from the end of one run to the begin of the "
        "next, by the device's own clock; read when a run is collected. One observation per step with work. On a CPU "
        "the host's gap between two runs.",
    ),
    "iteration_device_seconds": Definition(
        "histogram", "Time of one run on its device, forward and sampling, from its begin to its end."
    ),
    "iteration_host_seconds": Definition("histogram", "Host time of a step with work, by phase.", ("phase",)),
    "iterations_total": Definition("counter", "Steps, by what they ran; empty steps ran no forward.", ("kind",)),
    "graph_replays_total": Definition("counter", "Runs that were a replay of a captured decode."),
    "graph_padded_rows_total": Definition("counter", "Rows that replays computed for nobody, to fill a bucket."),
    "eager_steps_total": Definition(
        "counter",
        "Runs that were no replay, by reason: no_graphs where graphs are off or the device has none, empty without "
        "rows, prefill with prompt tokens, drafts with drafts, rows with more of them than were captured, "
        "uncaptured where the capture found no memory or a wait for the device.",
        ("reason",),
    ),
    "startup_seconds": Definition("gauge", "Wall time of a part of the rank's start.", ("part",)),
    "forward_info": Definition(
        "gauge", "Always 1; the labels say which forward and which attention this rank runs.", ("path", "attention")
    ),
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
    "requests_waiting": Definition("gauge", "Requests that wait for a slot or for blocks."),
    "queue_seconds": Definition(
        "histogram",
        "From the step that brings a request to its first slot; on ranks that publish tokens, the first of each data "
        "replica.",
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

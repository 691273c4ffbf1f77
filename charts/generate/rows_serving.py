"""The dashboard's rows about what users get: requests, cache, sampler, and the groups as the operator sees them."""

from __future__ import annotations

from typing import Any

from charts.generate.panels import About, Query, graph
from charts.generate.queries import DEPLOYMENT, RANK, per_step, quantile, rate, series, total


def _latency(title: str, description: str, histogram: str) -> Any:
    queries = [Query(quantile(share, histogram), f"p{share * 100:g}") for share in (0.5, 0.9, 0.99)]
    return graph(About(title, description, "s", 8), *queries)


def _by_label(title: str, description: str, counter: str, label: str) -> Any:
    query = Query(total(rate(counter), label), f"{{{{{label}}}}}")
    return graph(About(title, description, "reqps", 6), query, stacked=True)


def requests() -> list[Any]:
    """What the people who ask the API see."""
    return [
        _by_label(
            "Requests by outcome",
            "Ended requests per second. `error` and `refused` should be zero: the frontend's log says why.",
            "requests_total",
            "outcome",
        ),
        _by_label(
            "HTTP answers by status",
            "Per second, all routes. 429: the queue is full, add groups. 503: a group drains or is not ready yet.",
            "http_responses_total",
            "code",
        ),
        graph(
            About(
                "Requests running and waiting",
                "By rank. Requests wait while slots or blocks are short: add groups, or shorten the limits.",
                "none",
                6,
            ),
            Query(total(series("requests_running"), "group", "rank"), f"{RANK} running"),
            Query(total(series("requests_waiting"), "group", "rank"), f"{RANK} waiting"),
        ),
        graph(
            About(
                "Tokens",
                "Per second: prompt tokens accepted, those of them that came from the prefix caches, and tokens "
                "generated.",
                "short",
                6,
            ),
            Query(total(rate("prompt_tokens_total")), "prompt"),
            Query(total(rate("cached_prompt_tokens_total")), "of them cached"),
            Query(total(rate("generated_tokens_total")), "generated"),
        ),
        _latency(
            "Time to first token",
            "From arrival. High with requests waiting: too few groups. High without: long prompts.",
            "time_to_first_token_seconds",
        ),
        _latency(
            "Time between tokens",
            "Far above the step time: prefill steps in between, or preemptions.",
            "inter_token_seconds",
        ),
        _latency("Request time", "From arrival to end.", "request_seconds"),
    ]


def cache_and_sampler() -> list[Any]:
    """Blocks, prefixes, and the paths that update sampled rows."""
    used, blocks = series("kv_blocks_used"), series("kv_blocks")
    hits, asked = rate("prefix_cache_hit_tokens_total"), rate("prefix_cache_query_tokens_total")
    return [
        graph(
            About(
                "KV blocks in use",
                "Share of the pool. At 100% requests wait and then preempt: give the cache more memory.",
                "percentunit",
                8,
            ),
            Query(f"{total(used, 'group', 'rank')} / {total(blocks, 'group', 'rank')}", RANK),
            top=1,
        ),
        graph(
            About(
                "Prompt tokens found in the prefix cache",
                "Share of the tokens looked up. Low with a shared system prompt: the pool is too small to keep it.",
                "percentunit",
                8,
            ),
            Query(f"{total(hits, 'group')} / {total(asked, 'group')}", "{{group}}"),
            top=1,
        ),
        graph(
            About(
                "Preemptions", "Per second. Each computes a request's tokens again: the pool is too small.", "ops", 8
            ),
            Query(total(rate("preemptions_total"), "group"), "{{group}}"),
        ),
        graph(
            About(
                "Sampled rows by path",
                "Per second, summed over ranks. Rows leave the batched path for the reason shown; they cost more.",
                "ops",
            ),
            Query(total(rate("sampler_requests_total"), "path", "reason"), "{{path}} {{reason}}"),
            stacked=True,
        ),
        graph(
            About(
                "Update of requests per step",
                "Mean host time by path. The per-request part should be small beside the batched one.",
                "s",
            ),
            Query(per_step("sampler_update_seconds", "path"), "{{path}}"),
            stacked=True,
        ),
    ]


def groups() -> list[Any]:
    """The groups as the operator sees them, and the operator itself."""
    restarts = f"increase({series('operator_group_restarts_total', scope=DEPLOYMENT)}[$__rate_interval])"
    return [
        graph(
            About(
                "Groups by state",
                "Starting for long: the model is large or the pods are pending. Exhausted: the restart budget is used "
                "up, and someone must act.",
                "none",
            ),
            Query(total(series("operator_groups", scope=DEPLOYMENT), "state"), "{{state}}"),
            stacked=True,
        ),
        graph(
            About("Restarts of groups by reason", "`kubectl describe servingdeployment` names rank and node.", "none"),
            Query(f"{total(restarts, 'reason')} or on() vector(0)", "{{reason}}"),
        ),
        graph(
            About(
                "Reconciliations",
                "Of all deployments, per second. `error` that stays: see the operator's log.",
                "ops",
                8,
            ),
            Query(total(rate("operator_reconcile_total", scope=""), "result"), "{{result}}"),
        ),
        graph(
            About("Time of a reconciliation", "Seconds that last: the API server is slow to answer.", "s", 8),
            Query(quantile(0.5, "operator_reconcile_seconds", scope=""), "p50"),
            Query(quantile(0.99, "operator_reconcile_seconds", scope=""), "p99"),
        ),
        graph(
            About("Writes of the operator", "Zero while nothing changes; a steady rate is a fault.", "ops", 8),
            Query(total(rate("operator_writes_total", scope=""), "verb", "kind"), "{{verb}} {{kind}}"),
        ),
    ]

"""Metrics pages of a busy deployment: the real metric classes of ranks, frontend and operator, observed at each scrape.

Each scrape is a second of work, so that every rate and quantile has something to count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from lockstep_operator.api.status import GroupStatus, Status
from lockstep_operator.metrics import Metrics
from lockstep_worker.metrics.families import FrontendMetrics, HangCollector, RankMetrics

Page = Callable[[], bytes]
"""Does some work and renders the page."""


def rank_page(rank: int) -> Page:
    """The page of one rank that decodes, and idles half of the time."""
    registry = CollectorRegistry()
    metrics = RankMetrics(registry, rank)
    started = time.time()

    def read_detector() -> tuple[bool, float, Mapping[str, float], int]:
        lived = time.time() - started
        return True, time.time() - 0.01, {"idle": lived / 2, "load": 1.0}, 0

    registry.register(HangCollector(read_detector, rank))

    def page() -> bytes:
        for step in range(20):
            _observe_step(metrics, 0.002 + 0.0001 * step)
        return generate_latest(registry)

    return page


def _observe_step(metrics: RankMetrics, seconds: float) -> None:
    metrics.iteration_seconds.observe(seconds)
    metrics.iteration_bubble_seconds.observe(seconds / 10)
    metrics.iteration_device_seconds.observe(seconds / 2)
    metrics.graph_replays_total.inc()
    metrics.iteration_batch_size.observe(4)
    metrics.rank_skew_seconds.observe(seconds / 20)
    metrics.requests_running.set(4)
    metrics.requests_waiting.set(1)
    metrics.preemptions_total.inc()
    metrics.kv_blocks.set(128)
    metrics.kv_blocks_used.set(32)
    metrics.prefix_cache_query_tokens_total.inc(100)
    metrics.prefix_cache_hit_tokens_total.inc(60)
    metrics.step_tokens_total.inc(4)
    _touch_children(metrics, seconds)


def _touch_children(metrics: RankMetrics, seconds: float) -> None:
    histograms = (metrics.iteration_host_seconds, metrics.collective_wait_seconds, metrics.sampler_update_seconds)
    counters = (
        metrics.iterations_total,
        metrics.collectives_total,
        metrics.collective_bytes_total,
        metrics.sampler_requests_total,
        metrics.eager_steps_total,
    )
    for histogram in (child for children in histograms for child in children.values()):
        histogram.observe(seconds / 8)
    for counter in (child for children in counters for child in children.values()):
        counter.inc()


def frontend_page() -> Page:
    """The page of the frontend."""
    registry = CollectorRegistry()
    metrics = FrontendMetrics(registry, "recall")

    def page() -> bytes:
        metrics.requests_in_flight.set(4)
        metrics.time_to_first_token_seconds.observe(0.05)
        metrics.inter_token_seconds.observe(0.003)
        metrics.request_seconds.observe(0.8)
        metrics.prompt_tokens_total.inc(40)
        metrics.cached_prompt_tokens_total.inc(24)
        metrics.generated_tokens_total.inc(20)
        metrics.http_responses_total["/v1/completions", "200"].inc()
        for outcome in metrics.requests_total.values():
            outcome.inc()
        return generate_latest(registry)

    return page


def operator_page(namespace: str, deployment: str) -> Page:
    """The page of an operator with one deployment of two groups, one of which breaks at each scrape."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    groups = (GroupStatus(name="recall-main-1-0", state="Ready"), GroupStatus(name="recall-main-1-1", state="Starting"))

    def page() -> bytes:
        metrics.show(namespace, deployment, Status(groups=groups))
        metrics.observe_reconcile("ok", 0.03)
        metrics.count_write("create", "MPIJob")
        metrics.count_restart(namespace, deployment, "Hang")
        return generate_latest(registry)

    return page


@contextmanager
def serve_pages(pages: Mapping[str, Page]) -> Iterator[str]:
    """Serve each page at its path on loopback; give the address as `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages[self.path]()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing of each scrape."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="pages", daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

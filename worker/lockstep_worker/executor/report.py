"""What a step tells the outside beside its tokens: metrics, and a sign of life for the frontend."""

from __future__ import annotations

import time

from lockstep_worker.executor.exchange import Exchanged
from lockstep_worker.executor.idle import BEAT_S
from lockstep_worker.executor.publish import Publisher
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.runner.runner import Run
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.wire.messages import Cancel, Inbound, NewRequest, Progress, Started

_TOLD = ("active", "running", "free_blocks")
"""What the frontend is told the sums of, over all data replicas."""


class Reporter:
    """Reads the scheduler after a step; never changes anything.

    Args:
        scheduler: this rank's.
        metrics: this rank's.
        topology: this rank's.
        publisher: this rank's link to the frontend; None where the tokens are another rank's to publish.
    """

    def __init__(
        self, scheduler: Scheduler, metrics: RankMetrics, topology: Topology, publisher: Publisher | None
    ) -> None:
        self._scheduler = scheduler
        self._topology = topology
        self._pool = scheduler.pool
        self._metrics = metrics
        self._publisher = publisher
        self._told_at = 0.0
        self._seen_preemptions = 0
        self._arrived_s: dict[int, float] = {}
        metrics.kv_blocks.set(self._pool.num_blocks)

    def step(self, plan: Plan, exchanged: Exchanged) -> None:
        """Count a step with work and set the gauges to what it left; `exchanged` opened it."""
        self.count(plan)
        metrics, scheduler = self._metrics, self._scheduler
        if not plan.is_empty:
            metrics.iteration_batch_size.observe(plan.rows.size)
            metrics.step_tokens_total.inc(plan.num_tokens)
        metrics.requests_running.set(scheduler.num_running)
        metrics.requests_waiting.set(len(scheduler.waiting))
        metrics.kv_blocks_used.set(self._pool.num_blocks - self._pool.num_free)
        if preemptions := scheduler.num_preemptions - self._seen_preemptions:
            metrics.preemptions_total.inc(preemptions)
            self._seen_preemptions = scheduler.num_preemptions
        self.tell_progress(exchanged)

    def count(self, plan: Plan) -> None:
        """Count a step by what it ran."""
        self._metrics.iterations_total[(_kind(plan),)].inc()

    def count_run(self, run: Run) -> None:
        """Count a run as a replay, or by the reason why it is none."""
        metrics = self._metrics
        if run.eager_reason:
            metrics.eager_steps_total[(run.eager_reason,)].inc()
        else:
            metrics.graph_replays_total.inc()
            metrics.graph_padded_rows_total.inc(run.padded_rows)

    def tell_progress(self, exchanged: Exchanged | None) -> None:
        """Have rank 0 tell the frontend, about once a second, that the group lives and what its replicas have to do."""
        now = time.monotonic()
        if self._publisher is None or self._topology.data.index or now - self._told_at < BEAT_S / 2:
            return
        self._told_at = now
        blocks = self._topology.data.size * self._pool.num_blocks
        if exchanged is None:
            self._publisher.send(Progress(0, 0, 0, 0, blocks))
            return
        totals = {name: int(exchanged.of_replicas(name, self._topology).sum()) for name in _TOLD}
        waiting, used = totals["active"] - totals["running"], blocks - totals["free_blocks"]
        self._publisher.send(Progress(0, totals["running"], waiting, used, blocks))

    def note_arrivals(self, items: list[Inbound]) -> None:
        """Remember when requests came, where they are published; only a histogram depends on it."""
        if self._publisher is None:
            return
        now = time.monotonic()
        for item in items:
            match item:
                case NewRequest(handle):
                    self._arrived_s[handle] = now
                case Cancel(handle):
                    self._arrived_s.pop(handle, None)

    def tell_started(self) -> None:
        """Observe how long requests waited for their first slot, and count and tell what the cache had of them."""
        started = self._scheduler.started
        if not started:
            return
        if self._pool.prefix_cache:
            self._metrics.prefix_cache_query_tokens_total.inc(sum(one.prompt_length for one in started))
            self._metrics.prefix_cache_hit_tokens_total.inc(sum(one.cached_tokens or 0 for one in started))
        if self._publisher is None:
            return
        now = time.monotonic()
        for sequence in started:
            if (arrived_s := self._arrived_s.pop(sequence.handle, None)) is not None:
                self._metrics.queue_seconds.observe(now - arrived_s)
        found = {sequence.handle: sequence.cached_tokens or 0 for sequence in started if sequence.cached_tokens}
        if found:
            self._publisher.send(Started(list(found), list(found.values())))


def _kind(plan: Plan) -> str:
    if plan.is_empty:
        return "empty"
    if plan.num_decodes == plan.rows.size:
        return "decode"
    return "mixed" if plan.num_decodes else "prefill"

"""The step loop of one rank: every rank of a group runs it, together.

With overlap a step starts its run before it looks at the tokens of the one before: the device works while the host
updates and publishes. Without overlap it looks at its own. Both give the same tokens.
"""

from __future__ import annotations

import logging
import time
import zlib
from dataclasses import dataclass
from typing import Protocol

from lockstep_worker import ranges
from lockstep_worker.executor.exchange import Exchange, Exchanged, RankState
from lockstep_worker.executor.idle import BEAT_S, Bell, wait_awake
from lockstep_worker.executor.publish import Publisher
from lockstep_worker.executor.report import Reporter
from lockstep_worker.executor.routing import Router
from lockstep_worker.executor.timing import Laps, StepTimer
from lockstep_worker.health.hang import HangDetector
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.comm import Comm
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.phase import LOADING, Phase, Standing
from lockstep_worker.runner.runner import Run, Runner
from lockstep_worker.schedule.plan import EMPTY_PLAN, Plan
from lockstep_worker.schedule.sampled import NOTHING_SAMPLED, Sampled
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.schedule.update import live_rows, update_requests
from lockstep_worker.wire.messages import Cancel, Inbound, NewRequest

log = logging.getLogger(__name__)


class Source(Protocol):
    """Where rank 0 gets its items; the link's intake, or a test's list."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until there may be something to take."""

    def take(self) -> list[Inbound]:
        """Take what is there, checked, without waiting."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a loop is made of; `source` is rank 0's, `publisher` the first rank's of each data replica."""

    comm: Comm
    topology: Topology
    router: Router
    scheduler: Scheduler
    runner: Runner
    detector: HangDetector
    metrics: RankMetrics
    source: Source | None
    publisher: Publisher | None


class Loop:
    """Steps until a `Shutdown` came and everything before it is done.

    Args:
        parts: its parts.
        max_model_len: the context limit, for new sequences.
        overlap: start a run before collecting the one of the step before.
        debug_checks: verify the block pool after every step.
    """

    def __init__(self, parts: Parts, *, max_model_len: int, overlap: bool, debug_checks: bool = False) -> None:
        self._parts = parts
        self._scheduler = parts.scheduler
        self._table = parts.scheduler.table
        self._exchange = Exchange(parts.comm, parts.metrics, parts.topology)
        self._bell = Bell(parts.comm)
        self.timer = StepTimer(parts.metrics)
        """What stamps the steps; a benchmark puts another one in its place."""
        self._paths = Laps(parts.metrics.sampler_update_seconds)
        self._reporter = Reporter(parts.scheduler, parts.metrics, parts.topology, parts.publisher)
        self._max_model_len = max_model_len
        self._overlap = overlap
        self._debug_checks = debug_checks
        self._beat_s = min(BEAT_S, parts.detector.timeout_s / 4) if parts.detector.timeout_s else BEAT_S
        self._step = 0
        self.standing = LOADING
        """Where the loop stands; any thread may read it."""
        self._digest = 0
        self._in_flight: Run | None = None
        self._cancelled: list[int] = []
        self._closing = False

    def run(self) -> None:
        """Step until the end."""
        self._parts.detector.checkpoint()
        exchanged = self._park(None)
        while not (exchanged.idle and self._closing):
            exchanged = self._park(exchanged) if exchanged.idle else self.step(exchanged)
        log.info("all requests are done; leaving the loop after %d steps", self._step)

    def describe(self) -> str:
        """Say where the loop stands, for a hang's report; reads without locks."""
        scheduler = self._scheduler
        return (
            f"in {self.standing}, exchange {'posted' if self._exchange.posted else 'not posted'}, "
            f"forward {'in flight' if self._in_flight else 'none'}, {scheduler.num_running} running, "
            f"{len(scheduler.waiting)} waiting, {scheduler.pool.num_free} free blocks"
        )

    def step(self, exchanged: Exchanged) -> Exchanged:
        """One step, from what the ranks exchanged to the exchange that opens the next."""
        self.timer.begin()
        self._route(exchanged)
        plan = self._schedule()
        run = self._run(plan)
        self._post()
        self._finish(self._in_flight if self._overlap else run)
        self._in_flight = run if self._overlap else None
        self._reporter.step(plan, exchanged)
        self._parts.detector.checkpoint()
        return self._next()

    def _enter(self, phase: Phase) -> None:
        self.standing = Standing(self._step, phase)
        if ranges.tool is not None:
            ranges.move(ranges.NAMES[phase])

    def _route(self, exchanged: Exchanged) -> None:
        """Queue the new requests that are this data replica's, and end those that were cancelled."""
        self._enter(Phase.ROUTE)
        items = self._parts.router.mine(exchanged)
        self._reporter.note_arrivals(items)
        for item in items:
            match item:
                case NewRequest():
                    self._scheduler.add(Sequence.of(item, self._max_model_len))
                case Cancel():
                    if self._scheduler.cancel(item.handle):
                        self._cancelled.append(item.handle)
                case _:
                    self._closing = True
        self.timer.leave(Phase.ROUTE)

    def _schedule(self) -> Plan:
        self._enter(Phase.SCHEDULE)
        plan = self._scheduler.schedule()
        self._reporter.tell_started()
        self._digest = zlib.crc32(plan.counts.tobytes(), zlib.crc32(plan.rows.tobytes(), self._digest))
        self.timer.leave(Phase.SCHEDULE)
        return plan

    def _run(self, plan: Plan) -> Run | None:
        """Start a plan's run; None where there is nothing to run and no peer to run along with."""
        if not self._parts.runner.takes_part(plan):
            return None
        self._enter(Phase.FORWARD)
        run = self._parts.runner.run(plan)
        self._reporter.count_run(run)
        self.timer.leave(Phase.FORWARD)
        return run

    def _finish(self, run: Run | None) -> None:
        """Collect a run, update the slot table and publish; then free what ended."""
        sampled = NOTHING_SAMPLED if run is None else self._update(self._collect(run))
        self._publish(sampled)
        for slot in sampled.rows[sampled.codes != 0].tolist():
            self._scheduler.finish(slot)
        if self._debug_checks:
            self._scheduler.pool.check()

    def _collect(self, run: Run) -> Sampled:
        self._enter(Phase.COLLECT)
        sampled = live_rows(self._table, self._parts.runner.collect(run))
        self.timer.ran(self._parts.runner.spent(run))
        self._digest = zlib.crc32(sampled.tokens.tobytes(), self._digest)
        if not sampled.is_single:  # ranks with other drafts draw the same and keep another number of it
            self._digest = zlib.crc32(sampled.counts.tobytes(), self._digest)
        self.timer.leave(Phase.COLLECT)
        return sampled

    def _update(self, sampled: Sampled) -> Sampled:
        self._enter(Phase.UPDATE)
        self._paths.begin()
        sampled, batched = update_requests(self._table, sampled, self._paths.mark)
        self._paths.finish()
        metrics = self._parts.metrics
        metrics.sampler_requests_total[("batched", "")].inc(batched)
        for slot in sampled.rows[batched:].tolist():
            metrics.sampler_requests_total[("per_request", self._table.sequence(slot).reason)].inc()
        self.timer.leave(Phase.UPDATE)
        return sampled

    def _publish(self, sampled: Sampled) -> None:
        self._enter(Phase.PUBLISH)
        if self._parts.publisher is not None:
            self._parts.publisher.publish(self._step, self._table.handle, sampled, self._cancelled)
        self._cancelled = []
        self.timer.leave(Phase.PUBLISH)

    # --- the exchange, awake and parked -------------------------------------------------------------------------------
    def _post(self) -> bool:
        """Enter the next step's exchange, so that it completes under the forward and the host's tail.

        Returns:
            Whether this rank brings news to it.
        """
        ranges.move("fetch")
        source, scheduler = self._parts.source, self._scheduler
        self._step += 1
        state = RankState(
            step=self._step,
            active=scheduler.num_requests,
            running=scheduler.num_running,
            tokens=scheduler.num_prompt_tokens,
            free_blocks=scheduler.pool.num_free,
            digest=self._digest,
            routes=self._parts.router.digest,
        )
        items = source.take() if source else []
        self._exchange.post(state, items)
        self.timer.leave(Phase.EXCHANGE)
        return bool(items)

    def _next(self) -> Exchanged:
        self._enter(Phase.EXCHANGE)
        start = time.perf_counter()
        exchanged = self._exchange.complete(wait_awake)
        self._parts.metrics.collective_wait_seconds[("exchange",)].observe(time.perf_counter() - start)
        self._parts.metrics.rank_skew_seconds.observe(exchanged.skew_s)
        self.timer.leave(Phase.EXCHANGE)
        self.timer.finish()
        return exchanged

    def _park(self, exchanged: Exchanged | None) -> Exchanged:
        """Sleep until some rank has work: one tiny exchange a beat, and nothing else."""
        self.timer.park()
        if self._in_flight is not None:  # a run without rows; the host must not pack further ahead of the device
            self._parts.runner.collect(self._in_flight)
            self._in_flight = None
        with self._parts.detector.pause("idle", beat=True):
            while True:
                self._enter(Phase.IDLE)
                self._reporter.tell_progress(exchanged)
                if self._parts.source is not None:
                    self._parts.source.wait(self._beat_s)
                exchanged = self._park_exchange()
                self._parts.detector.beat()
                if not exchanged.idle:
                    return exchanged
                self._reporter.count(EMPTY_PLAN)

    def _park_exchange(self) -> Exchanged:
        brings_news = self._post()
        self._enter(Phase.EXCHANGE)
        if brings_news:
            self._bell.ring()
            return self._exchange.complete(wait_awake)
        exchanged = self._exchange.complete(self._bell.wait)
        if exchanged.items:
            self._bell.settle()
        return exchanged

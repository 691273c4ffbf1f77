"""`bench instruments`: what metrics and their stamps cost a decode step; all else of a rank's loop is as it is.

The same rounds run with the instruments and without them, there and back, in loops of their own over one model. Without
them every observation does nothing, and no phase is stamped; the marks on the device stay, since a run's end is waited
for by them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from lockstep_worker.bench.machine import describe_device
from lockstep_worker.bench.offline.session import Session, Workload
from lockstep_worker.executor.loop import Loop
from lockstep_worker.executor.timing import StepTimer
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.metrics.instruments import Children, Counter, Gauge, Histogram
from lockstep_worker.phase import Phase
from lockstep_worker.runner.marks import Spent
from lockstep_worker.wire.messages import NewRequest

_TURNS = (True, False, False, True)


class _SilentCounter(Counter):
    __slots__ = ()

    def inc(self, amount: float = 1) -> None:
        pass


class _SilentGauge(Gauge):
    __slots__ = ()

    def set(self, value: float) -> None:
        pass

    def inc(self, amount: float = 1) -> None:
        pass

    def dec(self, amount: float = 1) -> None:
        pass


class _SilentHistogram(Histogram):
    __slots__ = ()

    def observe(self, amount: float) -> None:
        pass


class SilentMetrics(RankMetrics):
    """A rank's metrics that take every observation and keep none."""

    def __init__(self) -> None:
        super().__init__(CollectorRegistry(), 0)
        for name, value in vars(self).items():
            if isinstance(value, Children):
                setattr(self, name, Children(partial(_make_silent, value), value))
            elif isinstance(value, Counter | Gauge | Histogram):
                setattr(self, name, _silence(value))


def _make_silent(children: Children) -> Any:
    return _silence(children._make())


def _silence(instrument: Any) -> Any:
    if isinstance(instrument, Histogram):
        return _SilentHistogram(instrument.bounds)
    return _SilentCounter() if isinstance(instrument, Counter) else _SilentGauge()


class SilentTimer(StepTimer):
    """A loop's timer that looks at no clock."""

    def begin(self) -> None:
        """See `StepTimer`."""

    def mark(self, name: str) -> None:
        """See `StepTimer`."""

    def leave(self, phase: Phase) -> None:
        """See `StepTimer`."""

    def ran(self, spent: Spent | None) -> None:
        """See `StepTimer`."""

    def finish(self) -> None:
        """See `StepTimer`."""


def measure_instruments(
    workload: Workload,
    batches: Sequence[int],
    repeats: int,
    options: Mapping[str, str],
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Measure decode steps with and without instruments.

    Args:
        workload: lengths and sampling of every request.
        batches: how many requests run at once.
        repeats: timed rounds of each batch in each of the four turns.
        options: of `serve`, as text by field name.
        report: gets each batch's figures.

    Raises:
        ConfigError: an option is unknown or wrong, or something does not fit.
    """
    session = Session(workload, max(batches), options)
    steps: dict[tuple[int, bool], list[float]] = {(batch, on): [] for batch in batches for on in (True, False)}

    def script(on: bool) -> Iterator[list[NewRequest]]:
        for batch in batches:
            yield workload.requests(batch, workload.output, seed=-1)
            for repeat in range(repeats):
                steps[batch, on].append((yield from _time_steps(session, workload, batch, repeat)))

    def prepare(loop: Loop) -> None:
        if isinstance(session.metrics, SilentMetrics):
            loop.timer = SilentTimer(session.metrics)

    for on in _TURNS:
        session.metrics = RankMetrics(CollectorRegistry(), 0) if on else SilentMetrics()
        session.run(script(on), prepare=prepare)
    for batch in batches:
        on_ms, off_ms = (statistics.median(steps[batch, on]) for on in (True, False))
        report(
            {
                "benchmark": "instruments",
                "shape": workload.shape,
                "batch": batch,
                "step_ms": {"on": round(on_ms, 4), "off": round(off_ms, 4)},
                "spread_ms": {
                    name: [round(min(steps[batch, on]), 4), round(max(steps[batch, on]), 4)]
                    for name, on in (("on", True), ("off", False))
                },
                "on_over_off": round(on_ms / off_ms, 4),
                "options": dict(options),
                "device": describe_device(session.device.type),
            }
        )


def _time_steps(
    session: Session, workload: Workload, batch: int, seed: int
) -> Generator[list[NewRequest], None, float]:
    """Run a round and return the mean milliseconds of the steps in its middle, where no row comes or goes."""
    before = len(session.outlet.steps_s)
    yield workload.requests(batch, workload.output, seed)
    stamps = session.outlet.steps_s[before:]
    middle = stamps[len(stamps) // 4 : -len(stamps) // 4]
    return (middle[-1] - middle[0]) / (len(middle) - 1) * 1e3

"""`bench decode`: what a decode step takes through scheduler, cache, sampler and publisher, without HTTP.

A round of B requests draws all its tokens from prompts that start together. Two rounds that differ only in their
outputs' length differ in decode steps only, so `(T(output + 1) - T(1)) / output` is a step. Every other figure here is
such a difference too: prompts, start and end cancel.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lockstep_worker.bench.machine import describe_device
from lockstep_worker.bench.offline.session import Session, Workload
from lockstep_worker.bench.offline.shapes import floor_ms
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.wire.messages import NewRequest

_WARM_UP = (2, 33)
"""Tokens of short rounds before the timed ones; a whole one follows."""


def measure_decode(
    workload: Workload,
    batches: Sequence[int],
    repeats: int,
    options: Mapping[str, str],
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Measure one batch after the other in one loop.

    Args:
        workload: lengths and sampling of every request.
        batches: how many requests run at once.
        repeats: timed pairs of rounds.
        options: of `serve`, as text by field name.
        report: gets each batch's figures when they are there.

    Raises:
        ConfigError: an option is unknown or wrong, or something does not fit.
    """
    start = time.perf_counter()
    session = Session(workload, max(batches), options)

    def script() -> Iterator[list[NewRequest]]:
        start_s = time.perf_counter() - start
        for batch in batches:
            pairs: list[_Pair] = []
            yield from _rounds(session, workload, batch, repeats, pairs)
            report(
                {
                    "benchmark": "decode",
                    **{name: getattr(workload, name) for name in ("shape", "prompt", "output", "temperature")},
                    "batch": batch,
                    "repeats": repeats,
                    **_sum_up(pairs, workload, batch),
                    "start_s": round(start_s, 2),
                    "forward": next(iter(session.metrics.forward_info), None),
                    "replays": session.metrics.graph_replays_total.value,
                    "eager_steps": {
                        reason: one.value for (reason,), one in session.metrics.eager_steps_total.items() if one.value
                    },
                    "dtype": str(session.model.dtype).removeprefix("torch."),
                    "options": dict(options),
                    "device": describe_device(session.device.type),
                }
            )

    session.run(script())


class _Totals(dict[str, float]):
    """Seconds by name since the start: the clock, the bubble and each phase."""

    @classmethod
    def read(cls, metrics: RankMetrics, now_s: float) -> _Totals:
        phases = {name: histogram.sum for (name,), histogram in metrics.iteration_host_seconds.items()}
        return cls(phases, wall=now_s, bubble=metrics.iteration_bubble_seconds.sum)

    def since(self, before: _Totals) -> _Totals:
        return _Totals({name: seconds - before[name] for name, seconds in self.items()})


_Pair = tuple[_Totals, _Totals]
"""What a round of one token took, and what a whole one."""


def _rounds(
    session: Session, workload: Workload, batch: int, repeats: int, pairs: list[_Pair]
) -> Iterator[list[NewRequest]]:
    """Warm up, then note pairs of rounds; every other pair runs the long one first."""
    whole = workload.output + 1
    for length in (*(min(one, whole) for one in _WARM_UP), whole):
        yield workload.requests(batch, length, seed=-1)
    for repeat in range(repeats):
        spent: dict[int, _Totals] = {}
        for length in (1, whole) if repeat % 2 == 0 else (whole, 1):
            requests = workload.requests(batch, length, seed=repeat)
            before = _Totals.read(session.metrics, time.perf_counter())
            yield requests
            spent[length] = _Totals.read(session.metrics, session.outlet.steps_s[-1]).since(before)
        pairs.append((spent[1], spent[whole]))


def _sum_up(pairs: Sequence[_Pair], workload: Workload, batch: int) -> dict[str, Any]:
    steps = [
        {name: (long[name] - short[name]) / workload.output * 1e3 for name in long}  # ms a step
        for short, long in pairs
    ]
    step = statistics.median(one["wall"] for one in steps)
    by_name = {name: statistics.median(one[name] for one in steps) for name in steps[0]}
    floor = floor_ms(workload.shape, batch, workload.prompt + workload.output / 2)
    return {
        "step_ms": {
            "median": round(step, 4),
            "low": round(min(one["wall"] for one in steps), 4),
            "high": round(max(one["wall"] for one in steps), 4),
        },
        "tokens_per_s": round(batch / step * 1e3, 1),
        "floor_ms": round(floor, 4),
        "step_over_floor": round(step / floor, 2),
        "bubble_share": round(statistics.median(one["bubble"] / one["wall"] for one in steps), 4),
        "host_ms": {name: round(by_name[name], 4) for name in by_name if name not in ("wall", "bubble")},
        "wall_s": {
            "one_token": round(statistics.median(short["wall"] for short, _ in pairs), 4),
            "whole": round(statistics.median(long["wall"] for _, long in pairs), 4),
        },
    }

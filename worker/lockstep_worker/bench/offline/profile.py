"""`lockstep-worker profile`: a few decode steps under torch's profiler, as a timeline and as a table.

The trace is Chrome's JSON, which Perfetto reads. The profiler costs the host some microseconds a kernel, so the times
and the number of kernels hold, and those of the host's ranges are upper bounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from lockstep_worker import ranges
from lockstep_worker.bench.machine import describe_device
from lockstep_worker.bench.offline.session import Session, Workload, synchronize
from lockstep_worker.ranges import ProfilerTool
from lockstep_worker.wire.messages import NewRequest

_RANGES = frozenset({*ranges.NAMES.values(), "fetch", "broadcast", "sample"})


class _Watch:
    """Profiles the steps from the `first` on, and stops before the `last`."""

    def __init__(self, session: Session, first: int, last: int) -> None:
        self._device = session.device
        self._first, self._last = first, last
        self._steps = 0
        kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (session.device.type == "cuda")]
        self.profiler = profile(activities=kinds)

    def on_step(self) -> None:
        """Count a step, in the middle of it: what is profiled begins and ends there."""
        self._steps += 1
        if self._steps == self._first:
            self.profiler.start()
            ranges.turn_on(ProfilerTool())
        elif self._steps == self._last:
            ranges.turn_off()
            synchronize(self._device)
            self.profiler.stop()


def profile_decode(
    workload: Workload, batch: int, steps: int, options: Mapping[str, str], trace: Path | None
) -> dict[str, Any]:
    """Profile decode steps in the middle of a round, whose graphs and caches are warm.

    Args:
        workload: every request's; its output must be longer than the steps.
        batch: requests that run at once.
        steps: how many to profile.
        options: of `serve`, as text by field name.
        trace: where the timeline goes; None for nowhere.

    Returns:
        Ranges and kernels, each with calls and microseconds a step, the longest first; the share of the time in which
        the device ran anything; device and versions.

    Raises:
        ConfigError: an option is unknown or wrong, or something does not fit.
    """
    session = Session(workload, batch, options)
    whole = workload.output + 1
    first = whole + whole // 2  # one round warms up, the second is looked at
    watch = _Watch(session, first, first + steps)

    def script() -> Iterator[list[NewRequest]]:
        for seed in (0, 1):
            yield workload.requests(batch, whole, seed)

    session.run(script(), watch.on_step)
    if trace is not None:
        watch.profiler.export_chrome_trace(str(trace))
    return {
        "profile": "decode",
        "shape": workload.shape,
        "batch": batch,
        "context": workload.prompt + whole // 2,
        "steps": steps,
        **_tabulate(watch.profiler, steps),
        "options": dict(options),
        "device": describe_device(session.device.type),
    }


def _tabulate(profiler: Any, steps: int) -> dict[str, Any]:
    """Add events up by name: ranges by the host's clock, kernels by the device's, or operators where it is the host."""
    on_device: list[Any] = []
    on_host: list[Any] = []
    for event in profiler.events():
        (on_host if event.device_type.name == "CPU" else on_device).append(event)
    drawn = [event for event in on_host if event.name in _RANGES]
    kernels = [event for event in on_device if event.name not in _RANGES]
    shown = kernels or [event for event in on_host if event.name not in _RANGES]
    busy_us = _covered([(event.time_range.start, event.time_range.end) for event in kernels])
    return {
        "ranges": _add_up([(event.name, event.time_range.elapsed_us()) for event in drawn], steps),
        "kernels": _add_up(
            [(one.name, one.time_range.elapsed_us() if kernels else one.self_cpu_time_total) for one in shown], steps
        ),
        "device_busy_us_per_step": round(busy_us / steps, 2) if kernels else None,
        "kernels_per_step": round(len(kernels) / steps, 2) if kernels else None,
    }


def _add_up(spans: list[tuple[str, float]], steps: int) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = defaultdict(list)
    for name, microseconds in spans:
        times[name].append(microseconds)
    rows = [
        {"name": name, "calls_per_step": round(len(each) / steps, 2), "us_per_step": round(sum(each) / steps, 2)}
        for name, each in times.items()
    ]
    return sorted(rows, key=lambda row: -row["us_per_step"])


def _covered(spans: list[tuple[float, float]]) -> float:
    """Add up the time in which at least one span runs."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def show(result: Mapping[str, Any], most: int = 30) -> str:
    """Lay the tables out for people; of the kernels the longest."""
    lines = [f"{result['shape']}, batch {result['batch']}, context {result['context']}, {result['device']['name']}"]
    if result["device_busy_us_per_step"] is not None:
        lines.append(f"device busy {result['device_busy_us_per_step']} us a step, {result['kernels_per_step']} kernels")
    for title in ("ranges", "kernels"):
        lines += ["", f"{'us/step':>10} {'calls/step':>11}  {title}"]
        for row in result[title][:most]:
            lines.append(f"{row['us_per_step']:10.2f} {row['calls_per_step']:11.2f}  {row['name'][:95]}")
    return "\n".join(lines)

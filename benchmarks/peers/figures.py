"""What the clients' stamps say about a server: the figures of one repeat, and their spread over all. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from benchmarks.peers.load import Seen
from benchmarks.peers.workloads import CLOSED_LOOPS, Workload
from lockstep_worker.bench.serving.timing import Timeline, quantile

Figures = dict[str, float]


def find_figures(workload: Workload, seen: Seen) -> Figures:
    """Compute a repeat's figures: milliseconds, and tokens a second. Empty where nothing succeeded.

    `inter_token_ms` is the gap between two events, `time_per_token_ms` what a further token took its request;
    `steady_tokens_per_s` counts events while all streams run, `tokens_per_s` all tokens over all the time, prompts
    included. `tokens_per_s_user` is one over the median time per token.
    """
    lanes = seen.lanes[: workload.clients]
    good = [timeline for timeline in chain(*lanes) if timeline.error is None and timeline.events_s]
    if not good:
        return {}
    if workload.name == "arrivals":
        begin, end = (seen.start_s + bound for bound in workload.window_s)
        gaps = [gap for timeline in good for gap in _gaps_within(timeline, begin, end)]
        late = [one.ttft_s for one in chain(*seen.lanes[workload.clients :]) if one.events_s]
        return {**_percentiles("inter_token", gaps), **_percentiles("arriving_ttft", late), "requests": len(good)}
    first = _percentiles("ttft", [timeline.ttft_s for timeline in good])
    if workload.name == "ttft":
        return first
    lasted = max(timeline.ended_s for timeline in good) - seen.start_s
    output, prompts = (sum(counts) for counts in zip(*((t.output_tokens, t.prompt_tokens) for t in good), strict=True))
    each = [tpot for timeline in good if (tpot := timeline.tpot_s) is not None]
    per_token = statistics.median(each) if each else 0.0
    found = {
        **first,
        **_percentiles("inter_token", [gap for timeline in good for gap in timeline.gaps_s]),
        "time_per_token_ms": per_token * 1e3,
        "tokens_per_s": output / lasted,
        "tokens_per_event": output / sum(len(timeline.events_s) for timeline in good),
    }
    if workload.name in CLOSED_LOOPS:
        user = 1 / per_token if per_token else 0.0
        return {**found, "all_tokens_per_s": (output + prompts) / lasted, "tokens_per_s_user": user}
    return {**found, "steady_tokens_per_s": _steady_rate(good)}


def find_errors(seen: Iterable[Seen]) -> list[str]:
    """List what went wrong, each request once."""
    return [one.error for each in seen for one in chain(*each.lanes) if one.error is not None]


def sum_up(repeats: Sequence[Figures]) -> dict[str, dict[str, float]]:
    """Give median, least and most of each figure."""
    names = dict.fromkeys(chain(*repeats))
    return {name: _spread([each[name] for each in repeats if name in each]) for name in names}


def _spread(values: list[float]) -> dict[str, float]:
    found = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def _percentiles(name: str, seconds: Iterable[float]) -> Figures:
    """Give median and 99th percentile in milliseconds, values that occurred; nothing for no values."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {f"{name}_ms": quantile(ordered, 0.5) * 1e3, f"{name}_p99_ms": quantile(ordered, 0.99) * 1e3}


def _gaps_within(timeline: Timeline, begin: float, end: float) -> Iterable[float]:
    return (later - earlier for earlier, later in pairwise(timeline.events_s) if begin <= earlier < end)


def _steady_rate(good: Sequence[Timeline]) -> float:
    """Tokens a second from the last first event to the first last event, when every stream runs."""
    begin, end = max(one.events_s[0] for one in good), min(one.events_s[-1] for one in good)
    if end <= begin:
        return 0.0
    return sum(
        sum(begin < stamp <= end for stamp in one.events_s) * one.output_tokens / len(one.events_s) for one in good
    ) / (end - begin)

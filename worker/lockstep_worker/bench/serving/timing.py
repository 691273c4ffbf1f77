"""What the times of requests say about a server: latencies, percentiles and rates. Pure; knows no clock and no HTTP.

TTFT is the first event minus the start of its request. ITL is the gap between two events of a stream; a server may put
several tokens into an event, so TPOT, the rest of the latency per further token, is given beside it.
Rates count the tokens of requests that succeeded over the wall time from the first start to the last end, ramp and
tail included; a request that failed adds time and no tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
CEILING_FACTOR = 3.0
"""How much faster than what it measured the client alone must be."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One request as its client saw it; seconds on one clock."""

    started_s: float
    ended_s: float
    events_s: tuple[float, ...] = ()
    """When each event with output came."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    """As the server's usage counts ids."""
    cached_tokens: int = 0
    error: str | None = None
    is_cut: bool = False
    """The client stopped reading; how many tokens it got is not known."""

    @property
    def ttft_s(self) -> float:
        """From the start to the first event."""
        return self.events_s[0] - self.started_s

    @property
    def latency_s(self) -> float:
        """From the start to the end of the response."""
        return self.ended_s - self.started_s

    @property
    def gaps_s(self) -> list[float]:
        """Between each two events."""
        return [later - earlier for earlier, later in pairwise(self.events_s)]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None where there is none."""
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed (nearest rank).

    Args:
        ordered: ascending, not empty.
        share: in (0, 1].
    """
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def summarize_ms(seconds: Iterable[float]) -> dict[str, float] | None:
    """Return mean and percentiles in milliseconds; None for no values."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    mean = {"mean": sum(ordered) / len(ordered)}
    found = mean | {name: quantile(ordered, share) for name, share in QUANTILES.items()}
    return {name: round(value * 1000, 3) for name, value in found.items()}


def summarize_level(timelines: Sequence[Timeline]) -> dict[str, object]:
    """Sum up all requests of one concurrency.

    Args:
        timelines: at least one.
    """
    good = [timeline for timeline in timelines if timeline.error is None]
    duration_s = max(t.ended_s for t in timelines) - min(t.started_s for t in timelines)
    output = sum(t.output_tokens for t in good)
    prompt = sum(t.prompt_tokens for t in good)
    num_events = sum(len(t.events_s) for t in good)
    return {
        "requests": len(timelines),
        "failures": len(timelines) - len(good),
        "errors": sorted({t.error for t in timelines if t.error is not None})[:5],
        "duration_s": round(duration_s, 3),
        "requests_per_s": round(len(good) / duration_s, 3),
        "output_tokens_per_s": round(output / duration_s, 1),
        "total_tokens_per_s": round((output + prompt) / duration_s, 1),
        "output_tokens": output,
        "prompt_tokens": prompt,
        "cached_prompt_tokens": sum(t.cached_tokens for t in good),
        "tokens_per_event": round(output / num_events, 3) if num_events else None,
        "ttft_ms": summarize_ms(t.ttft_s for t in good),
        "inter_token_ms": summarize_ms(gap for t in good for gap in t.gaps_s),
        "time_per_output_token_ms": summarize_ms(tpot for t in good if (tpot := t.tpot_s) is not None),
        "end_to_end_ms": summarize_ms(t.latency_s for t in good),
    }


def judge_client(measured_tokens_per_s: float, ceiling_tokens_per_s: float) -> dict[str, object]:
    """Say whether the client was far enough from its own limit for the figures to be the server's."""
    is_enough = ceiling_tokens_per_s >= CEILING_FACTOR * measured_tokens_per_s
    factor = ceiling_tokens_per_s / measured_tokens_per_s if measured_tokens_per_s else None
    limit = f"below {CEILING_FACTOR:g} times the measured rate: the client may limit these figures"
    return {
        "ceiling_tokens_per_s": round(ceiling_tokens_per_s, 1),
        "factor": None if factor is None else round(factor, 1),
        "verdict": "enough" if is_enough else limit,
    }

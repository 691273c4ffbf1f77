"""PromQL in words: each function returns one expression; knows label names, not panels.

`$__rate_interval` is Grafana's: at least four scrapes, so that a rate never falls between two of them.
"""

from __future__ import annotations

ENGINE = 'namespace=~"$namespace",deployment=~"$deployment",role=~"$role"'
"""Picks the ranks that the dashboard's variables name."""
DEPLOYMENT = 'namespace=~"$namespace",deployment=~"$deployment"'
"""The same for the operator's series, which know no role."""
RANK = "{{group}} rank {{rank}}"
"""A legend's name of one rank."""


def series(name: str, *matchers: str, scope: str = ENGINE) -> str:
    """Select a metric of the engine by its name without prefix, narrowed by the variables and `matchers`."""
    return f"lockstep_{name}{{{','.join(filter(None, (scope, *matchers)))}}}"


def rate(name: str, *matchers: str, scope: str = ENGINE) -> str:
    """Per second, over Grafana's interval."""
    return f"rate({series(name, *matchers, scope=scope)}[$__rate_interval])"


def total(expression: str, *by: str) -> str:
    """Sum, kept apart by the labels `by`."""
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def quantile(share: float, histogram: str, *by: str, scope: str = ENGINE) -> str:
    """A quantile of a histogram, kept apart by the labels `by`."""
    buckets = total(rate(f"{histogram}_bucket", scope=scope), *by, "le")
    return f"histogram_quantile({share}, {buckets})"


def mean(histogram: str, *by: str) -> str:
    """The mean of what a histogram observed, kept apart by the labels `by`."""
    return f"{total(rate(f'{histogram}_sum'), *by)} / {total(rate(f'{histogram}_count'), *by)}"


def share_of_step(histogram: str, *by: str) -> str:
    """How much of the steps' wall time a histogram of seconds takes, 0 to 1, kept apart by the labels `by`."""
    return f"{total(rate(f'{histogram}_sum'), *by)} / {total(rate('iteration_seconds_sum'), *by)}"


def per_step(histogram: str, label: str) -> str:
    """Seconds of a histogram per step with work, kept apart by one of its own labels."""
    steps = total(rate("iteration_seconds_count"))
    return f"{total(rate(f'{histogram}_sum'), label)} / ignoring({label}) group_left() {steps}"

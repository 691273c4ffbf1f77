"""How a metric's definition becomes a metric that costs about a microsecond and never raises into the loop.

Knows no metric by name; they all stand in `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lockstep_worker.contract import METRIC_PREFIX

_STEP_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric as the documentation shows it; `labels` come after those that its whole table has."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = _STEP_BUCKETS


class _Counter(Counter):
    """A counter that drops what it cannot take: better a count too few than a step that fails."""

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        """Add; a negative or infinite amount, or none at all (NaN), is dropped."""
        if 0 <= amount < math.inf:
            super().inc(amount, exemplar)


class _Histogram(Histogram):
    """A histogram of amounts that are never negative: one wrong value would spoil its sum for ever."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Observe; a negative or infinite amount, or none at all (NaN), is dropped."""
        if 0 <= amount < math.inf:
            super().observe(amount, exemplar)


class _Children(dict[tuple[str, ...], Any]):
    """A metric's children by their own label values; one that nobody foresaw is made when it is asked for."""

    def __init__(self, metric: Any, constant: tuple[str, ...], known: Iterable[tuple[str, ...]]) -> None:
        self._make: Callable[[tuple[str, ...]], Any] = lambda values: metric.labels(*constant, *values)
        super().__init__({values: self._make(values) for values in known})

    def __missing__(self, values: tuple[str, ...]) -> Any:
        child = self[values] = self._make(values)
        return child


class Family:
    """Builds metrics of one table on one registry with constant leading labels.

    Args:
        registry: of this process.
        constant: names and values of the labels that every series of the table has.
    """

    def __init__(self, registry: CollectorRegistry, constant: Mapping[str, str]) -> None:
        self._registry = registry
        self._constant = constant

    def build(self, name: str, definition: Definition) -> Any:
        """Make a metric; one without a colon in its name gets our prefix."""
        labels = (*self._constant, *definition.labels)
        full = name if ":" in name else METRIC_PREFIX + name
        match definition.kind:
            case "counter":
                return _Counter(full, definition.help, labels, registry=self._registry)
            case "gauge":
                return Gauge(full, definition.help, labels, registry=self._registry)
            case _:
                return _Histogram(full, definition.help, labels, registry=self._registry, buckets=definition.buckets)

    def children(self, metric: Any, known: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], Any]:
        """Look up the known label values once, so that observing is one dictionary look-up."""
        return _Children(metric, tuple(self._constant.values()), known)

"""Where a step's time goes: its phases, the paths of the update, and the bubble between two runs.

The bubble is read off the device, when a run is collected; see `runner/marks`. It is not observed for the first run
after the group parked: an idle device is no bubble.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.metrics.instruments import Histogram
from lockstep_worker.phase import Phase
from lockstep_worker.runner.marks import Spent

_clock = time.perf_counter


class Laps:
    """Time by name, observed once a name; what is not marked between `begin` and `finish` is not observed.

    Args:
        histograms: by name, as the only label.
    """

    def __init__(self, histograms: Mapping[tuple[str, ...], Histogram]) -> None:
        self._observe = {name: histogram.observe for (name,), histogram in histograms.items()}
        self._start = self._last = _clock()
        self._spans: dict[str, float] = {}

    def begin(self) -> None:
        """The first lap starts."""
        self._start = self._last = _clock()
        self._spans.clear()

    def mark(self, name: str) -> None:
        """A lap ends here, and the next one starts; laps of one name add up."""
        now, spans = _clock(), self._spans
        spans[name] = spans.get(name, 0.0) + now - self._last
        self._last = now

    def finish(self) -> None:
        """Observe each name's time."""
        for name, seconds in self._spans.items():
            self._observe[name](seconds)


_LABELS = {phase: phase.label for phase in Phase}


class StepTimer(Laps):
    """Stamps of one rank's steps, observed into its metrics; its laps are the loop's phases.

    Args:
        metrics: this rank's.
    """

    def __init__(self, metrics: RankMetrics) -> None:
        super().__init__(metrics.iteration_host_seconds)
        self._metrics = metrics
        self._is_first = True

    def leave(self, phase: Phase) -> None:
        """A phase ends here."""
        self.mark(_LABELS[phase])

    def ran(self, spent: Spent | None) -> None:
        """A run was collected; observe its time on the device, and the bubble before it."""
        if spent is None:
            return
        self._metrics.iteration_device_seconds.observe(spent.run_s)
        if spent.idle_s is not None and not self._is_first:
            self._metrics.iteration_bubble_seconds.observe(spent.idle_s)
        self._is_first = False

    def park(self) -> None:
        """The group is idle from here on."""
        self._is_first = True

    def finish(self) -> None:
        """A step with work ends: observe its phases and its whole."""
        super().finish()
        self._metrics.iteration_seconds.observe(_clock() - self._start)

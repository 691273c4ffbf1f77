"""Where a step's time goes: host phases, and the bubble between two forwards.

On a CPU a forward runs in its launch, so the bubble is the host's time from the end of one launch to the start of the
next while there is work. It is forgotten whenever the group parks: an idle device is no bubble.
"""

from __future__ import annotations

import time

from lockstep_worker.metrics import RankMetrics

_clock = time.perf_counter


class StepTimer:
    """Stamps of one rank's steps, observed into its metrics.

    Args:
        metrics: this rank's.
    """

    def __init__(self, metrics: RankMetrics) -> None:
        self._metrics = metrics
        self._start = self._last = _clock()
        self._spans: dict[str, float] = {}
        self._forward_end: float | None = None

    def begin(self) -> None:
        """A step starts."""
        self._start = self._last = _clock()
        self._spans.clear()

    def mark(self, phase: str) -> None:
        """A phase of the step ends here."""
        now = _clock()
        self._spans[phase] = self._spans.get(phase, 0.0) + now - self._last
        self._last = now

    def forward(self, end_of_forward: bool) -> None:
        """A forward starts or ends here; observes the bubble in between."""
        now = _clock()
        if end_of_forward:
            self._forward_end = now
        elif self._forward_end is not None:
            self._metrics.iteration_bubble_seconds.observe(now - self._forward_end)

    def park(self) -> None:
        """The group is idle from here on."""
        self._forward_end = None

    def finish(self) -> None:
        """A step with work ends: observe its phases and its whole."""
        for phase, seconds in self._spans.items():
            self._metrics.iteration_host_seconds[(phase,)].observe(seconds)
        self._metrics.iteration_seconds.observe(_clock() - self._start)

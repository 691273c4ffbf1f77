"""Where a run begins and ends on its device, and so how long the device sat idle before it.

On a GPU each run stands between two events. They are read when a run is collected, whose end has then passed, and with
it everything before; so the gap between two runs comes one step late and never waits. Elsewhere a run is done when its
start returns, and the host's clock serves.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import torch

_RING = 4
"""Runs whose marks are kept apart: one in flight, the one being started, the one collected last, and one to spare."""


class Spent(NamedTuple):
    """What the device did, in seconds."""

    run: float
    """From a run's begin to its end."""
    idle: float | None
    """From the end of the run before to this one's begin; None for the first after a park."""


class Marks(Protocol):
    """Begins and ends each run once, in order, and is asked about each once, in the same order."""

    def begin(self) -> int:
        """Mark where a run begins; returns the mark, to be kept with the run."""

    def end(self, mark: int) -> None:
        """Mark where it ends."""

    def read(self, mark: int) -> Spent:
        """Say what a run took; only once its end has passed."""

    def forget(self) -> None:
        """Nothing came before the next run: the group parks, and an idle device is no bubble."""


class HostMarks:
    """Marks of a device that has done a run when its start returns."""

    def __init__(self) -> None:
        self._begins, self._ends = [0.0] * _RING, [0.0] * _RING
        self._count = 0
        self._first = 0

    def begin(self) -> int:
        """See `Marks`."""
        mark = self._count
        self._count += 1
        self._begins[mark % _RING] = time.perf_counter()
        return mark

    def end(self, mark: int) -> None:
        """See `Marks`."""
        self._ends[mark % _RING] = time.perf_counter()

    def read(self, mark: int) -> Spent:
        """See `Marks`."""
        begin = self._begins[mark % _RING]
        idle = begin - self._ends[(mark - 1) % _RING] if mark > self._first else None
        return Spent(self._ends[mark % _RING] - begin, idle)

    def forget(self) -> None:
        """See `Marks`."""
        self._first = self._count


class DeviceMarks:
    """Marks in a GPU's stream: a ring of events that are made once."""

    def __init__(self) -> None:
        make = torch.cuda.Event
        self._begins = [make(enable_timing=True) for _ in range(_RING)]  # type: ignore[no-untyped-call]
        self._ends = [make(enable_timing=True) for _ in range(_RING)]  # type: ignore[no-untyped-call]
        self._count = 0
        self._first = 0

    def begin(self) -> int:
        """See `Marks`."""
        mark = self._count
        self._count += 1
        self._begins[mark % _RING].record()
        return mark

    def end(self, mark: int) -> None:
        """See `Marks`; also what `wait` waits for."""
        self._ends[mark % _RING].record()

    def wait(self, mark: int) -> None:
        """Wait until a run's end has passed."""
        self._ends[mark % _RING].synchronize()

    def read(self, mark: int) -> Spent:
        """See `Marks`."""
        begin, end = self._begins[mark % _RING], self._ends[mark % _RING]
        before = self._ends[(mark - 1) % _RING]
        idle = before.elapsed_time(begin) * 1e-3 if mark > self._first else None
        return Spent(begin.elapsed_time(end) * 1e-3, idle)

    def forget(self) -> None:
        """See `Marks`."""
        self._first = self._count

"""Where runs begin and end on their device, and so how long the device sat idle between two of them.

On a GPU each run stands between two events of a ring. They are read when the run is collected: its end has passed then,
and so has everything before, so the gap to the run before it is known one step late and nobody waits for it. Elsewhere
a run is done when its start returns, and the host's clock serves.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import torch

_RING = 4
"""Runs that are kept apart: the one being read, the one before it, the one in flight, and one to spare."""


class Spent(NamedTuple):
    """What the device did, in seconds."""

    run_s: float
    """From a run's begin to its end."""
    idle_s: float | None
    """From the end of the run before to this one's begin; None for the first."""


class _Moment(Protocol):
    """A moment on a device, set again and again."""

    def set(self) -> None:
        """It is now, behind everything that the device was given so far."""

    def wait(self) -> None:
        """Return once it has passed."""

    def seconds_to(self, later: _Moment) -> float:
        """Say how much later another one passed; both must have."""


class _HostMoment:
    """See `_Moment`; the host's clock."""

    def __init__(self) -> None:
        self._at_s = 0.0

    def set(self) -> None:
        self._at_s = time.perf_counter()

    def wait(self) -> None:
        pass

    def seconds_to(self, later: _Moment) -> float:
        assert isinstance(later, _HostMoment), "both moments are of one device"
        return later._at_s - self._at_s


class _DeviceMoment:
    """See `_Moment`; an event in the current stream, made once."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def set(self) -> None:
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_to(self, later: _Moment) -> float:
        assert isinstance(later, _DeviceMoment), "both moments are of one device"
        return float(self._event.elapsed_time(later._event)) * 1e-3


class Marks:
    """Marks runs in the order in which they start, and tells of each once, in the same order.

    Args:
        device: where the runs are.
    """

    def __init__(self, device: torch.device) -> None:
        make = _DeviceMoment if device.type == "cuda" else _HostMoment
        self._begins: list[_Moment] = [make() for _ in range(_RING)]
        self._ends: list[_Moment] = [make() for _ in range(_RING)]
        self._count = 0

    def begin(self) -> int:
        """A run begins here, once its inputs are on their way; returns its mark."""
        mark = self._count
        self._count += 1
        self._begins[mark % _RING].set()
        return mark

    def end(self, mark: int) -> None:
        """The run ends here, what it brings to the host included."""
        self._ends[mark % _RING].set()

    def wait(self, mark: int) -> None:
        """Wait until the run's end has passed."""
        self._ends[mark % _RING].wait()

    def read(self, mark: int) -> Spent:
        """Tell of a run whose end has passed; at most one has begun since."""
        assert self._count - mark < _RING, "the mark before was set again"
        begin = self._begins[mark % _RING]
        idle_s = self._ends[(mark - 1) % _RING].seconds_to(begin) if mark else None
        return Spent(begin.seconds_to(self._ends[mark % _RING]), idle_s)

"""Named ranges around a step's parts, for whoever looks at a timeline; off, they cost the step nothing to speak of.

A step's phases follow one another: `move` ends one range and begins the next. What lies within a phase gets a `span`.
The names are those of the engines that we learned from: fetch (new requests), gather (the exchange of all ranks'
rows), broadcast (the new requests' payload), schedule, forward, sample, update; besides route, collect and publish.
One process has one loop, and only its thread may use this.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from lockstep_worker.phase import Phase

NAMES = {phase: "gather" if phase is Phase.EXCHANGE else phase.label for phase in Phase}
"""A phase's range."""


class Tool(Protocol):
    """What draws ranges; they nest."""

    def push(self, name: str) -> None:
        """Begin a range."""

    def pop(self) -> None:
        """End the latest one."""


class NvtxTool:
    """Ranges that Nsight Systems shows."""

    def __init__(self) -> None:
        from torch.cuda import nvtx  # noqa: PLC0415 - who draws none needs no torch

        self._nvtx = nvtx

    def push(self, name: str) -> None:
        """See `Tool`."""
        self._nvtx.range_push(name)  # type: ignore[no-untyped-call]

    def pop(self) -> None:
        """See `Tool`."""
        self._nvtx.range_pop()  # type: ignore[no-untyped-call]


class ProfilerTool:
    """Ranges that torch's profiler writes into its trace."""

    def __init__(self) -> None:
        from torch.profiler import record_function  # noqa: PLC0415

        self._make = record_function
        self._open: list[AbstractContextManager[object]] = []

    def push(self, name: str) -> None:
        """See `Tool`."""
        self._open.append(self._make(name))
        self._open[-1].__enter__()

    def pop(self) -> None:
        """See `Tool`."""
        self._open.pop().__exit__(None, None, None)


class _Span:
    """See `span`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        assert tool is not None, "a span is made where ranges are on"
        tool.push(self._name)

    def __exit__(self, *_: object) -> None:
        if tool is not None:
            tool.pop()


_NOTHING = nullcontext()
tool: Tool | None = None
"""Who draws; None for nobody, which a step may ask for itself before it calls anything."""
_has_moved = False


def turn_on(chosen: Tool) -> None:
    """Draw ranges from here on, between two steps."""
    global tool, _has_moved
    tool, _has_moved = chosen, False


def turn_off() -> None:
    """Draw no more; ends the range that is open. Not within a span."""
    global tool  # noqa: PLW0603
    if tool is not None and _has_moved:
        tool.pop()
    tool = None


def move(name: str) -> None:
    """A part of the step begins, and the one before it ends."""
    global _has_moved  # noqa: PLW0603
    if tool is None:
        return
    if _has_moved:
        tool.pop()
    tool.push(name)
    _has_moved = True


def span(name: str) -> AbstractContextManager[None]:
    """Draw a range around what lies within a part of the step."""
    return _NOTHING if tool is None else _Span(name)

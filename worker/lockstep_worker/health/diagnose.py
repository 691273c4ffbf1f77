"""One text report of what every thread of this process is doing. Never raises, and ends in bounded time."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

from lockstep_worker.health.bounded import run_bounded

REPORT_BOUND_S = 2.0


def diagnose(state: Callable[[], str] | None = None, *, bound_s: float = REPORT_BOUND_S) -> str:
    """Describe all threads and, where given, the step's state.

    Args:
        state: returns a text about the step; it may raise or block, which costs its part of the report only.
        bound_s: seconds that each of the two parts may take.
    """
    parts = {"threads": _thread_stacks, **({"state": state} if state else {})}
    return "\n".join(f"=== {title} ===\n{_part(build, bound_s)}" for title, build in parts.items())


def _part(build: Callable[[], str], bound_s: float) -> str:
    result = run_bounded(build, bound_s)
    if result.error is not None:
        return f"<failed: {result.error!r}>"
    return result.value if result.done and result.value is not None else f"<nothing within {bound_s:g} s>"


def _thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"--- {names.get(ident, 'not a Python thread')} ({ident}) ---\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )

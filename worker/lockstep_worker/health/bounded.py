"""Run something that may block, and wait for it only so long: the last steps of a dying rank must not stop its end."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class Outcome(Generic[T]):
    """What came of it: `done` is False while it still runs or never could."""

    done: bool = False
    value: T | None = None
    error: BaseException | None = None


def run_bounded(function: Callable[[], T], bound_s: float) -> Outcome[T]:
    """Call a function in a daemon thread of its own and wait at most `bound_s` seconds; never raises."""
    outcome: Outcome[T] = Outcome()

    def call() -> None:
        try:
            outcome.value = function()
        except BaseException as error:  # whatever it is, it must not reach a rank that is ending  # noqa: BLE001
            outcome.error = error
        outcome.done = True

    try:
        thread = threading.Thread(target=call, name="bounded", daemon=True)
        thread.start()
    except RuntimeError as error:  # no more threads, or the interpreter is shutting down
        outcome.error = error
        return outcome
    thread.join(bound_s)
    return outcome
